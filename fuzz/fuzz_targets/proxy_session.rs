#![no_main]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rolldrop_sidecar::fuzzing::{numbered_sessions, target};
use rolldrop_testing::Meter;

/// Allocator that counts the bytes in use.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn take(bytes: usize) {
    let held = HELD.fetch_add(bytes, Relaxed) + bytes;
    if held > PEAK.load(Relaxed) {
        PEAK.store(held, Relaxed);
    }
}

// SAFETY: every method forwards to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        take(size);
        HELD.fetch_sub(layout.size(), Relaxed);
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs a range of sessions (`FROM..TO`) instead of the fuzzer.
fn run_numbered(range: &str) -> ! {
    let ends = range.split_once("..").map(|(from, to)| (from.parse(), to.parse()));
    let Some((Ok(from), Ok(to))) = ends else { panic!("FUZZ_SESSIONS is not FROM..TO: {range}") };
    numbered_sessions(from..to);
    std::process::exit(0)
}

libfuzzer_sys::fuzz_target!(
    init: {
        let (held, peak) = (|| HELD.load(Relaxed), || PEAK.swap(HELD.load(Relaxed), Relaxed));
        Meter { held, peak }.install();
        if let Ok(range) = std::env::var("FUZZ_SESSIONS") {
            run_numbered(&range);
        }
    },
    |bytes: &[u8]| target::proxy_session(bytes)
);
