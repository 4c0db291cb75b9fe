//! HTTP wire parsing, shared by all code that sends, forwards or serves HTTP: [`http1`] finds the end of a body,
//! [`answer_events`] the events in it, [`http2`] reads frames and header blocks of a connection that it only observes,
//! and [`places`] decides which connections a server keeps.

pub mod answer_events;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod http1;
pub mod http2;
pub mod places;
