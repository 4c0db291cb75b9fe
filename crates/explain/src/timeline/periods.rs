//! Union of periods of time.

use rolldrop_record::Stamp;

/// Disjoint periods, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Periods(Vec<(Stamp, Stamp)>);

impl Periods {
    /// Builds the union of periods; both ends of each period are included.
    pub(crate) fn of(periods: impl IntoIterator<Item = (Stamp, Stamp)>) -> Self {
        let mut all: Vec<_> = periods.into_iter().filter(|(from, to)| from <= to).collect();
        all.sort_unstable();
        let mut apart: Vec<(Stamp, Stamp)> = Vec::new();
        for (from, to) in all {
            match apart.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => apart.push((from, to)),
            }
        }
        Self(apart)
    }

    /// Returns the periods, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Stamp, Stamp)> {
        self.0.iter().copied()
    }

    /// Returns true if one of the periods overlaps or touches the period between these times.
    pub(crate) fn meet(&self, from: Stamp, to: Stamp) -> bool {
        let next = self.0.partition_point(|(_, end)| *end < from);
        self.0.get(next).is_some_and(|(begin, _)| *begin <= to)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn merged_periods_overlap_same_ranges(
            drawn in prop::collection::vec((0_i64..60, -1_i64..9), 0..9), from in 0_i64..70, length in 0_i64..9
        ) {
            let at = Stamp::from_unix_ns;
            let periods: Vec<_> = drawn.iter().map(|(from, length)| (at(*from), at(from + length))).collect();
            let (from, to) = (at(from), at(from + length));
            let meets = |(begin, end): &(Stamp, Stamp)| begin <= end && from <= *end && to >= *begin;
            prop_assert_eq!(Periods::of(periods.iter().copied()).meet(from, to), periods.iter().any(meets));
        }
    }
}
