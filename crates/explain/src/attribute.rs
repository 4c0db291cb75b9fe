//! Attribution of lost requests: the terminations and other causes that may explain each one.

pub(crate) mod cause;
pub(crate) mod evidence;
pub(crate) mod judged;
pub(crate) mod shares;
pub(crate) mod suspects;
