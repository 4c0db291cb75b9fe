//! Analysis and expectations to a verdict. Pure.
