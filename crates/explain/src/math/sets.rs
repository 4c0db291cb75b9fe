//! Disjoint sets.

/// Disjoint sets of the numbers from 0 on, each represented by its smallest number.
#[derive(Clone, Debug)]
pub struct Sets(Vec<usize>);

impl Sets {
    /// Starts with `n` sets of one number each.
    pub fn new(n: usize) -> Self {
        Self((0..n).collect())
    }

    /// Returns the smallest number in a number's set.
    pub fn first(&self, mut of: usize) -> usize {
        while self.0[of] != of {
            of = self.0[of];
        }
        of
    }

    /// Merges the sets of two numbers.
    pub fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.first(a), self.first(b));
        self.0[a.max(b)] = a.min(b);
    }
}
