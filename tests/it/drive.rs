//! `rolldrop tune`: choice and proof of a sleep, and the effect on an independent client.

mod tune;
mod tuned;
