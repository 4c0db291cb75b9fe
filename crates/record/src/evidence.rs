//! Further evidence about a load's connections, besides the answers.

use super::names::named;

named! {
    /// Evidence about where connections went, in addition to the answers themselves.
    pub enum Evidence else UnknownEvidence "{0:?} is not a kind of evidence: use conntrack" {
        /// Connection tracking by the kernel that the connections leave from.
        Conntrack = "conntrack",
    }
}
