//! A load that workers in a cluster's pods send, seen from the one that wants it sent.

pub mod ask;
pub mod collect;
pub mod handover;
pub mod journal;
pub mod link;
pub mod live;
pub mod parts;
pub mod reverse;

pub(super) const ACKNOWLEDGED_PATH: &str = "/acknowledged";
