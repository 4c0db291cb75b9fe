//! Records to pod lives and joined requests. Pure.
