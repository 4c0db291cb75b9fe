//! Helpers shared by the tests of several controllers.

pub(super) mod bench;
