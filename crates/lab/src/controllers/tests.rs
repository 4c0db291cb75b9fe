//! Helpers that the tests of several controllers share.

pub(super) mod bench;
