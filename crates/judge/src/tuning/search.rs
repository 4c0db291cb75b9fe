//! Chooses the sleep to prove next.
//!
//! The search covers whole seconds, between the longest sleep known to lose requests and the shortest proven one. Each
//! proof spends half of the remaining error so that the total error of all proofs stays within the limit.

use super::Proof;

/// Maximum number of proofs in one search.
pub const MOST_PROOFS: usize = 10;

/// A search for the shortest sleep that suffices.
#[derive(Clone, Debug)]
pub struct SleepSearch {
    /// Longest sleep known to lose requests.
    lost_with: Option<u64>,
    /// Shortest sleep that a proof confirmed.
    held_with: Option<u64>,
    /// Sleep to prove next, if none is confirmed yet.
    candidate: u64,
    /// True if the search continues until one second less is known to lose requests.
    is_tight: bool,
    /// True if windows show how long the sleep must be; otherwise only lost requests do.
    has_windows: bool,
    /// Longest sleep that may be tried.
    most: u64,
    proofs: usize,
}

/// Next step of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Prove this sleep, in seconds.
    Prove(u64),
    /// The search ends with this sleep, in seconds, which suffices.
    Found(u64),
    /// The longest sleep that may be tried loses requests.
    TooLong,
    /// The maximum number of proofs has been made.
    TooMany,
}

impl SleepSearch {
    /// Starts a search with the sleep that covers the windows.
    pub const fn from_windows(covers: u64, is_tight: bool) -> Self {
        // The windows may require a longer sleep than any that was measured.
        let most = u64::MAX;
        Self {
            lost_with: None,
            held_with: None,
            candidate: covers,
            is_tight,
            has_windows: true,
            most,
            proofs: 0,
        }
    }

    /// Starts a search guided by lost requests, for when no windows were seen to their end. `set` is the current sleep,
    /// and `has_lost` is true if requests were lost with it; `first` is the sleep to begin with, if anything suggests
    /// one.
    pub fn by_losses(
        (set, has_lost): (u64, bool),
        first: Option<u64>,
        (is_tight, most): (bool, u64),
    ) -> Self {
        let most = most.max(set);
        let candidate = first.unwrap_or(if has_lost { longer(set, most) } else { set });
        Self {
            lost_with: has_lost.then_some(set),
            held_with: None,
            candidate: candidate.min(most),
            is_tight,
            has_windows: false,
            most,
            proofs: 0,
        }
    }

    /// Returns the next step, given the proofs so far.
    pub fn next(&self) -> Next {
        let next = match (self.lost_with, self.held_with) {
            (Some(lost), None) if lost >= self.most => return Next::TooLong,
            (_, None) => self.candidate,
            (_, Some(held)) if !self.is_tight || held == 0 => return Next::Found(held),
            (Some(lost), Some(held)) if held <= lost + 1 => return Next::Found(held),
            // The windows show that one second less is too short.
            (_, Some(held)) if self.has_windows => held - 1,
            (lost, Some(held)) => lost.map_or(held / 2, |lost| lost.midpoint(held)),
        };
        match (self.proofs < MOST_PROOFS, self.held_with) {
            (true, _) => Next::Prove(next),
            (false, Some(held)) if !self.has_windows => Next::Found(held),
            (false, _) => Next::TooMany,
        }
    }

    /// Returns the part of the total error `alpha` that the next proof may spend.
    pub fn error(&self, alpha: f64) -> f64 {
        (0..=self.proofs).fold(alpha, |left, _| left / 2.0)
    }

    /// Records the result of a proof of this sleep.
    pub fn learn(&mut self, sleep_s: u64, proof: &Proof) {
        self.proofs += 1;
        match proof {
            Proof::Holds => self.held_with = Some(sleep_s),
            Proof::TooShort { at_least, .. } => {
                self.lost_with = self.lost_with.max(Some(sleep_s));
                let next = if self.has_windows { sleep_s + 1 } else { longer(sleep_s, self.most) };
                self.candidate = at_least.unwrap_or(next).min(self.most);
                // A window that outlasts a sleep refutes it, even if no request was lost with it.
                let refuted = at_least.map_or(sleep_s, |least| least - 1);
                self.held_with = self.held_with.filter(|held| *held > refuted);
            }
            // The same sleep is tried again, with a longer grace period.
            Proof::CutsStreams { .. } | Proof::Unknown(_) => {}
        }
    }
}

/// Returns the sleep to try after one that lost requests, if nothing else indicates the required length.
fn longer(sleep_s: u64, most: u64) -> u64 {
    sleep_s.saturating_mul(2).max(1).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a search in which sleeps of `least` or more suffice. Returns the sleeps that were tried, and the last step.
    fn searched(mut search: SleepSearch, least: u64) -> (Vec<u64>, Next) {
        let mut proven = Vec::new();
        loop {
            match search.next() {
                Next::Prove(sleep_s) => {
                    proven.push(sleep_s);
                    let proof = match sleep_s >= least {
                        true => Proof::Holds,
                        false => Proof::TooShort { lost: 1, at_least: None },
                    };
                    search.learn(sleep_s, &proof);
                }
                end => return (proven, end),
            }
        }
    }

    #[test]
    fn window_search_adds_seconds_after_failure() {
        assert_eq!(searched(SleepSearch::from_windows(7, false), 7), (vec![7], Next::Found(7)));
        assert_eq!(searched(SleepSearch::from_windows(7, false), 9), (vec![7, 8, 9], Next::Found(9)));
        assert_eq!(searched(SleepSearch::from_windows(3, false), 99).1, Next::TooMany);
    }

    #[test]
    fn tight_search_shows_shorter_sleep_loses_requests() {
        assert_eq!(searched(SleepSearch::from_windows(7, true), 7), (vec![7, 6], Next::Found(7)));
        assert_eq!(searched(SleepSearch::from_windows(7, true), 5), (vec![7, 6, 5, 4], Next::Found(5)));
        assert_eq!(searched(SleepSearch::from_windows(1, true), 0), (vec![1, 0], Next::Found(0)));
    }

    #[test]
    fn windowless_search_doubles_then_bisects() {
        let tight = |most| (true, most);
        let search = SleepSearch::by_losses((0, true), None, tight(60));
        assert_eq!(searched(search.clone(), 6), (vec![1, 2, 4, 8, 6, 5], Next::Found(6)));
        assert_eq!(searched(search.clone(), 1), (vec![1], Next::Found(1)));
        assert_eq!(searched(search, 61), (vec![1, 2, 4, 8, 16, 32, 60], Next::TooLong));
        let of_set = SleepSearch::by_losses((20, false), None, tight(60));
        assert_eq!(searched(of_set, 3), (vec![20, 10, 5, 2, 3], Next::Found(3)));
        let loose = SleepSearch::by_losses((0, true), None, (false, 60));
        assert_eq!(searched(loose, 6), (vec![1, 2, 4, 8], Next::Found(8)), "no shorter sleep is tried");
    }

    #[test]
    fn search_follows_known_window_bounds() {
        let search = SleepSearch::by_losses((0, true), Some(2), (false, 60));
        assert_eq!(searched(search.clone(), 2), (vec![2], Next::Found(2)));
        let mut search = search;
        search.learn(2, &Proof::TooShort { lost: 3, at_least: Some(3) });
        assert_eq!(search.next(), Next::Prove(3), "a lower bound gives the next sleep");
        search.learn(3, &Proof::Holds);
        search.learn(3, &Proof::TooShort { lost: 0, at_least: Some(5) });
        assert_eq!(search.next(), Next::Prove(5), "a window of another run outlasts the confirmed sleep");
        let beyond = SleepSearch::by_losses((0, true), Some(90), (false, 60));
        assert_eq!(beyond.next(), Next::Prove(60));
    }

    #[test]
    fn proofs_share_error_budget() {
        let mut search = SleepSearch::by_losses((0, true), None, (true, 1000));
        let mut spent = 0.0;
        while let Next::Prove(sleep_s) = search.next() {
            spent += search.error(0.05);
            search.learn(sleep_s, &Proof::TooShort { lost: 1, at_least: None });
        }
        assert!(spent < 0.05, "{spent}");
        assert!((SleepSearch::from_windows(1, false).error(0.05) - 0.025).abs() < 1e-12);
    }
}
