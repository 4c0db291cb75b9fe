//! Code shared by the tests and fuzz targets (`fuzz/`) of several packages. No other build includes this crate.
//!
//! A crate that reads bytes from the network, or files written by others, has a module `fuzzing` with its [`targets!`].
//! Each target takes arbitrary bytes and panics if it breaks its promise: no input crashes it and, where bytes arrive
//! in pieces, the sizes of the pieces make no difference. These modules are compiled only into fuzz targets and unit
//! tests.

#![expect(clippy::print_stderr, reason = "the inputs of a failed test are shown")]

mod inputs;
pub mod schema;
#[cfg(test)]
mod tests;

use std::iter;
use std::sync::OnceLock;

pub use inputs::break_none;

/// A function that takes arbitrary bytes.
pub type Entry = fn(&[u8]);

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the target's program and of the folder with its kept inputs.
    pub name: &'static str,
    /// Function that the target calls.
    pub entry: Entry,
    /// True if a single input takes so long that the tests use only the kept inputs.
    pub is_slow: bool,
}

/// Defines a crate's targets: a function for each, a table of them, and the test that feeds them the kept inputs. With
/// separate functions, each fuzzing program contains only the code that it needs, and the fuzzer counts only that
/// code's edges.
///
/// An entry is an expression that is called with the bytes; paths in it start at the crate root. `[slow]` after a name
/// marks a target whose inputs take milliseconds.
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
        /// If the target breaks its promise.
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
        fn targets_withstand_corpus_and_mutations() {
            $crate::break_none(TARGETS);
        }
    };
}

/// A counter of allocated bytes that have not been freed, backed by a fuzz target's allocator. Without a meter, nothing
/// is counted.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    /// Returns the number of bytes in use.
    pub held: fn() -> usize,
    /// Returns the peak number of bytes in use since the last call to this function.
    pub peak: fn() -> usize,
}

static METER: OnceLock<Meter> = OnceLock::new();

impl Meter {
    /// Installs this meter, unless one is already installed.
    pub fn install(self) {
        let _ = METER.set(self);
    }

    /// Returns the number of bytes in use; 0 without a meter.
    pub fn held() -> usize {
        METER.get().map_or(0, |meter| (meter.held)())
    }

    /// Returns the peak number of bytes in use since the last call to this function; 0 without a meter.
    pub fn peak() -> usize {
        METER.get().map_or(0, |meter| (meter.peak)())
    }
}

/// Splits an input: returns the bytes after the first one, both in one piece and in several. The first byte determines
/// the sizes of the pieces.
pub fn pieces(input: &[u8]) -> (&[u8], impl Iterator<Item = &[u8]> + Clone) {
    let (seed, bytes) = input.split_first().map_or((0, input), |(seed, bytes)| (*seed, bytes));
    let (mut rest, mut state) = (bytes, u32::from(seed));
    let cut = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // With 0, the bytes stay in one piece; up to 15, all pieces are short.
        let most = if seed == 0 { rest.len() } else { 1 + usize::from(seed) / 2 };
        let size = if seed == 0 { most } else { 1 + (state >> 16) as usize % most };
        let (piece, more) = rest.split_at(size.min(rest.len()));
        rest = more;
        (!piece.is_empty()).then_some(piece)
    };
    (bytes, iter::from_fn(cut))
}
