//! What the requests of one connection, or of one source port, show about each other.

pub(crate) mod connection_pods;
pub(crate) mod lost_streams;
pub(crate) mod port_reuse;
