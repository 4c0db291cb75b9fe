//! HTTP on the wire, for all code that sends, passes on or serves it: [`http1`] finds the end of a body, [`http2`]
//! reads frames and header blocks of a connection that passes by, [`places`] decides which connections a server holds.

pub mod http1;
pub mod http2;
pub mod places;
