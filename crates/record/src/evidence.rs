//! Evidence about a load's connections, in addition to the responses.

use super::names::named;

named! {
    /// Evidence of where connections went, in addition to the responses.
    pub enum Evidence else UnknownEvidence "{0:?} is not a kind of evidence: use conntrack" {
        /// Connection tracking in the kernel of the sending machine.
        Conntrack = "conntrack",
    }
}
