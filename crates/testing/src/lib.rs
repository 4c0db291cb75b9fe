//! Code that the tests and fuzz targets (`fuzz/`) of several packages share. No other build has this crate.
//!
//! A crate that reads bytes from the network, or files that somebody else wrote, has a module `fuzzing` with its
//! [`targets!`]. Each target takes any bytes, and panics if it does not keep its promise: that nothing breaks it and,
//! where bytes come in pieces, that the pieces make no difference. These modules are compiled into fuzz targets and
//! unit tests only.

mod inputs;
pub mod schema;
#[cfg(test)]
mod tests;

use std::iter;
use std::sync::OnceLock;

pub use inputs::break_none;

/// A function that takes any bytes.
pub type Entry = fn(&[u8]);

/// One fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of its program, and of the folder of its kept inputs.
    pub name: &'static str,
    /// Function that it calls.
    pub entry: Entry,
    /// True if one input takes so long that the tests feed it only the kept inputs.
    pub is_slow: bool,
}

/// Makes the targets of a crate: a function for each, so that its program contains, and the fuzzer counts the
/// edges of, no more than it needs; a table of them; and the test that feeds them the kept inputs.
///
/// An entry is an expression that is called with the bytes, its paths from the crate's root on. A name with
/// `[slow]` after it is a target whose inputs take milliseconds.
#[macro_export]
macro_rules! targets {
    ($($name:ident $([$slow:ident])?: $entry:expr,)*) => {
        /// Every target of this crate.
        pub const TARGETS: &[$crate::Target] = &[$($crate::Target {
            name: stringify!($name),
            entry: target::$name,
            is_slow: !<[&str]>::is_empty(&[$(stringify!($slow))?]),
        }),*];

        /// A function for each target.
        ///
        /// # Panics
        /// If the target does not keep its promise.
        pub mod target {
            $(
                #[doc = concat!("Feeds bytes to the target `", stringify!($name), "`.")]
                pub fn $name(bytes: &[u8]) {
                    $entry(bytes);
                }
            )*
        }

        #[cfg(test)]
        #[test]
        fn corpus_and_mutations_break_no_target() {
            $crate::break_none(TARGETS);
        }
    };
}

/// A counter of the bytes that the program has allocated and not freed: a fuzz target's allocator. Without a meter
/// nothing is counted.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    /// Returns the bytes in use.
    pub held: fn() -> usize,
    /// Returns the most bytes that have been in use since the last call of this function.
    pub peak: fn() -> usize,
}

static METER: OnceLock<Meter> = OnceLock::new();

impl Meter {
    /// Installs this meter; the first one that is installed stays.
    pub fn install(self) {
        let _ = METER.set(self);
    }

    /// Returns the bytes in use; 0 without a meter.
    pub fn held() -> usize {
        METER.get().map_or(0, |meter| (meter.held)())
    }

    /// Returns the most bytes that have been in use since the last call of this function; 0 without a meter.
    pub fn peak() -> usize {
        METER.get().map_or(0, |meter| (meter.peak)())
    }
}

/// Splits an input into its bytes after the first one, and those bytes in pieces whose sizes the first byte determines.
pub fn pieces(input: &[u8]) -> (&[u8], impl Iterator<Item = &[u8]> + Clone) {
    let (seed, bytes) = input.split_first().map_or((0, input), |(seed, bytes)| (*seed, bytes));
    let (mut rest, mut state) = (bytes, u32::from(seed));
    let cut = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // With 0 they stay whole; up to 15 there are short ones only.
        let most = if seed == 0 { rest.len() } else { 1 + usize::from(seed) / 2 };
        let size = if seed == 0 { most } else { 1 + (state >> 16) as usize % most };
        let (piece, more) = rest.split_at(size.min(rest.len()));
        rest = more;
        (!piece.is_empty()).then_some(piece)
    };
    (bytes, iter::from_fn(cut))
}
