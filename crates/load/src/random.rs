//! Random numbers that are the same on every machine and in every version, so that a schedule or a body can be
//! reproduced from the seed in run.json.

use std::convert::Infallible;

use rand::TryRng;

/// Random number generator with a seed (SplitMix64: Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    /// Returns the sequence for `seed`.
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the sequence for one of several uses of the same seed.
    pub(super) fn of(seed: u64, thing: u64) -> Self {
        let mut mixed = Self(seed ^ Self(thing).next());
        Self(mixed.next())
    }

    /// Returns the next number.
    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns the next number, greater than 0 and at most 1.
    pub(super) const fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Returns the next number in the inclusive range from `first` to `last`, or `first` if they are in the wrong
    /// order.
    pub(super) const fn between(&mut self, first: u64, last: u64) -> u64 {
        match last.saturating_sub(first).checked_add(1) {
            // The bias is less than 2^-64 times the number of choices.
            Some(choices) => first + ((self.next() as u128 * choices as u128) >> 64) as u64,
            None => self.next(),
        }
    }
}

/// Lets the distributions of random lengths draw from this generator.
impl TryRng for Random {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((self.next() >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.next())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generator_matches_published_sequence() {
        let mut random = Random::new(1_234_567);
        let drawn = [random.next(), random.next(), random.next()];
        assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn random_numbers_stay_within_bounds() {
        let mut random = Random::new(7);
        let drawn: Vec<_> = (0..1000).map(|_| random.between(3, 5)).collect();
        assert!([3, 4, 5].iter().all(|n| drawn.contains(n)) && drawn.iter().all(|n| (3..=5).contains(n)));
        assert_eq!(random.between(9, 9), 9);
        assert!((0..1000).all(|_| (0.0..=1.0).contains(&random.unit())));
    }
}
