//! When traffic to a pod stopped: from arrivals, from the balance of failing connections, from the death of the pod.

pub(crate) mod balance;
pub(crate) mod death;
pub(crate) mod flows;
pub(crate) mod phase;
pub(crate) mod streams;
pub(crate) mod tries;
pub(crate) mod window;
