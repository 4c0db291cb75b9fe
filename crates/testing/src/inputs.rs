//! A short version of fuzzing for unit tests: the inputs kept for each target (`fuzz/seeds`), and variations of them.

use std::fs;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use rand::prelude::IndexedRandom;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt};

use super::Target;

/// Number of varied inputs for each target.
const CASES: u32 = 1000;

/// Strings inserted into inputs to make them invalid.
const TEXTS: &[&str] = &[
    "\r\n",
    "\n",
    "\r",
    " ",
    "\t",
    ":",
    ",",
    ";",
    "0",
    "-1",
    "\0",
    "\"",
    "{",
    "ffffffffffffffff",
    "18446744073709551616",
];

pub(crate) fn fuzz_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// Feeds each target its kept inputs and, unless the target is slow, a thousand variations of them.
///
/// # Panics
/// If a target breaks on an input, after printing the input, or if a target has no kept inputs.
pub fn break_none(targets: &[Target]) {
    let mut random: SmallRng = rand::make_rng();
    for target in targets {
        let kept = kept(target.name);
        assert!(!kept.is_empty(), "{} has no seeds", target.name);
        kept.iter().for_each(|input| feed(target, input));
        let others = if target.is_slow { 0 } else { CASES };
        for _ in 0..others {
            let input = kept.choose(&mut random).cloned().unwrap_or_default();
            feed(target, &changed(input, &mut random));
        }
    }
}

/// Feeds an input to a target, and prints the input on stderr if the target panics.
fn feed(target: &Target, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.entry)(input))) {
        eprintln!(
            "{} broke on b\"{}\": fix it, and keep that input in fuzz/seeds",
            target.name,
            input.escape_ascii()
        );
        resume_unwind(panic);
    }
}

/// Returns the inputs kept for a target: starting points, and inputs found by the fuzzer.
fn kept(target: &str) -> Vec<Vec<u8>> {
    let folder = fuzz_folder().join("seeds").join(target);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    files.map(|file| fs::read(file.expect("an entry").path()).expect("an input")).collect()
}

/// Returns the input with up to four random changes and a new first byte.
fn changed(mut bytes: Vec<u8>, random: &mut impl Rng) -> Vec<u8> {
    for _ in 0..random.random_range(0..5) {
        let part = part(&bytes, random);
        let at = part.start;
        match random.random_range(0..5) {
            0 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= random.random::<u8>();
                }
            }
            1 => {
                let inserted: [u8; 3] = random.random();
                bytes.splice(at..at, inserted);
            }
            2 => {
                let text = TEXTS.choose(random).copied().unwrap_or_default();
                bytes.splice(at..at, text.bytes());
            }
            3 => {
                bytes.drain(part);
            }
            _ => bytes.extend_from_within(part),
        }
    }
    if let Some(first) = bytes.first_mut() {
        *first ^= random.random::<u8>();
    }
    bytes
}

fn part(bytes: &[u8], random: &mut impl Rng) -> Range<usize> {
    let mut end = || random.random_range(0..=bytes.len());
    let (a, b) = (end(), end());
    a.min(b)..a.max(b)
}
