//! `rolldrop tune`: how it chooses and proves a sleep, and the outcome for a client that is not rolldrop's.

mod tune;
mod tuned;
