//! Connects to a real cluster or starts the embedded one.

pub mod embedded;
