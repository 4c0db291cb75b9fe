//! Connects to a real cluster or starts the embedded one.
