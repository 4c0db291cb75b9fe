//! Purpose of a run: to terminate pods, or to watch.

use rolldrop_record::named;

named! {
    /// Purpose of a run.
    #[derive(Default)]
    pub enum Aim {
        /// The run's actions or command were meant to terminate pods.
        Disrupt = "disrupt",
        /// The run watched pods that others may terminate, or its actions may terminate some.
        Observe = "observe",
        /// The run was not meant to terminate pods; it only sent a load, or its actions leave pods alive.
        #[default]
        Other = "other",
    }
}
