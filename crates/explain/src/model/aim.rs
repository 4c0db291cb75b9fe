//! Purpose of a run: was it to end pods?

use rolldrop_record::named;

named! {
    /// Purpose of a run.
    #[derive(Default)]
    pub enum Aim {
        /// Its actions or its command were to end pods.
        Disrupt = "disrupt",
        /// It watched pods that others may end, or its actions may end some.
        Observe = "observe",
        /// It was to end no pod: it only sent a load, or its actions leave pods alive.
        #[default]
        Other = "other",
    }
}
