//! Values indexed by number, stored only from the lowest number to the highest.

/// Values for consecutive numbers, starting at `first`.
#[derive(Debug, Default)]
pub(super) struct Stretch<T> {
    first: usize,
    values: Vec<T>,
}

impl<T: Clone + Default> Stretch<T> {
    /// Returns the value for a number, if there is one.
    pub(super) fn at(&self, number: usize) -> Option<&T> {
        self.values.get(number.checked_sub(self.first)?)
    }

    /// Returns the value for a number, creating default values up to it as needed.
    pub(super) fn at_mut(&mut self, number: usize) -> &mut T {
        if self.values.is_empty() {
            self.first = number;
        } else if number < self.first {
            // Double the size so that numbers decreasing one by one seldom move the others.
            let first = number.saturating_sub(self.values.len());
            self.values.splice(0..0, std::iter::repeat_n(T::default(), self.first - first));
            self.first = first;
        }
        let place = number - self.first;
        if self.values.len() <= place {
            self.values.resize(place + 1, T::default());
        }
        &mut self.values[place]
    }

    /// Returns all values with their numbers, in order.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (usize, &T)> {
        let numbers = self.first..self.first + self.values.len();
        numbers.zip(&self.values)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn stretch_keeps_values_in_any_order(numbers in prop::collection::vec(900_usize..1_000, 0..40)) {
            let (mut stretch, mut expected) = (Stretch::default(), BTreeMap::new());
            for (value, number) in (1..).zip(numbers) {
                *stretch.at_mut(number) = value;
                expected.insert(number, value);
            }
            for number in 890..1_010 {
                let of = stretch.at(number).copied().unwrap_or_default();
                prop_assert_eq!(of, expected.get(&number).copied().unwrap_or_default());
            }
            let found: BTreeMap<usize, u64> =
                stretch.iter().filter(|(_, value)| **value > 0).map(|(number, value)| (number, *value)).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
