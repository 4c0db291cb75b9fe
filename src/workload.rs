//! The sample server with named good and bad shutdown habits.
