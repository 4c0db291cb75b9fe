//! The recording reverse proxy.
