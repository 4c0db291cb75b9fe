//! Relations between requests on one connection, or from one source port.

pub(crate) mod connection_pods;
pub(crate) mod lost_streams;
pub(crate) mod port_reuse;
