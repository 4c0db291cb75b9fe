//! Totals over time. The step length doubles as a run gets longer, so the number of steps stays small.

/// Total whose parts may be added in any order.
pub(crate) trait Sum: Default {
    /// Adds another total.
    fn merge(&mut self, other: Self);
}

/// One total for each step of the counted part of the load.
#[derive(Debug)]
pub(crate) struct ByTime<T> {
    /// Number of times the step length has doubled.
    doubled: u32,
    steps: Vec<T>,
}

impl<T> Default for ByTime<T> {
    fn default() -> Self {
        Self { doubled: 0, steps: Vec::new() }
    }
}

impl<T: Sum> ByTime<T> {
    /// Initial length of a step, in nanoseconds.
    const FIRST_NS: i64 = 125_000_000;
    /// Maximum number of steps.
    const MOST: usize = 480;

    /// Returns the total for the step that contains this time since the counted part began.
    pub(crate) fn at(&mut self, since_ns: i64) -> &mut T {
        let first = usize::try_from(since_ns / Self::FIRST_NS).unwrap_or(0);
        while first >> self.doubled >= Self::MOST {
            self.double();
        }
        let step = first >> self.doubled;
        if self.steps.len() <= step {
            self.steps.resize_with(step + 1, T::default);
        }
        &mut self.steps[step]
    }

    /// Returns the step length in seconds, and the steps in chronological order.
    pub(crate) fn finish(self) -> (f64, Vec<T>) {
        (Self::FIRST_NS as f64 / 1e9 * 2_f64.powf(f64::from(self.doubled)), self.steps)
    }

    fn double(&mut self) {
        self.doubled += 1;
        let mut halves = std::mem::take(&mut self.steps).into_iter();
        while let Some(mut step) = halves.next() {
            if let Some(second) = halves.next() {
                step.merge(second);
            }
            self.steps.push(step);
        }
    }
}

impl<T: Sum> Sum for ByTime<T> {
    fn merge(&mut self, mut other: Self) {
        while self.doubled < other.doubled {
            self.double();
        }
        while other.doubled < self.doubled {
            other.double();
        }
        if self.steps.len() < other.steps.len() {
            self.steps.resize_with(other.steps.len(), T::default);
        }
        for (step, its) in self.steps.iter_mut().zip(other.steps) {
            step.merge(its);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Sum for u64 {
        fn merge(&mut self, other: Self) {
            *self += other;
        }
    }

    proptest! {
        #[test]
        fn merged_sums_match_whole(
            drawn in prop::collection::vec(-1_000_000_000_i64..2_000_000_000_000, 0..60), cut in 0_usize..60
        ) {
            let of = |times: &[i64]| {
                let mut sums = ByTime::<u64>::default();
                times.iter().for_each(|ns| *sums.at(*ns) += 1);
                sums
            };
            let (first, second) = drawn.split_at(cut.min(drawn.len()));
            let (mut one, mut other) = (of(first), of(second));
            one.merge(of(second));
            other.merge(of(first));
            let whole = of(&drawn).finish();
            prop_assert_eq!(&one.finish(), &whole);
            prop_assert_eq!(&other.finish(), &whole);
            prop_assert_eq!(whole.1.iter().sum::<u64>(), drawn.len() as u64);
            prop_assert!(whole.1.len() <= ByTime::<u64>::MOST);
        }
    }

    #[test]
    fn time_steps_lengthen_beyond_maximum_count() {
        let mut sums = ByTime::<u64>::default();
        [0, 60_000_000_000 - 1].iter().for_each(|ns| *sums.at(*ns) += 1);
        let (step_s, steps) = sums.finish();
        assert_eq!((step_s, steps.len()), (0.125, 480));
        let mut sums = ByTime::<u64>::default();
        [0, 60_000_000_000, 130_000_000_000].iter().for_each(|ns| *sums.at(*ns) += 1);
        let (step_s, steps) = sums.finish();
        assert_eq!((step_s, steps[0], steps[120], steps[260]), (0.5, 1, 1, 1));
    }
}
