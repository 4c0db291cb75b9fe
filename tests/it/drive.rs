//! `rolldrop tune`: how it chooses and proves a sleep, and what becomes of a client that is not rolldrop's.

mod tune;
mod tuned;
