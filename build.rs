//! Leaves the symbols out of release builds: they are a third of the program. A panic still names file and line.
//!
//! Cargo ignores `strip` of a profile that has settings for this package. A linker that the user chose may not know the
//! option.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, wanted: &str| env::var(name).is_ok_and(|value| value == wanted);
    let is_own = env::var_os("RUSTC_LINKER").is_none();
    if is("PROFILE", "release") && is("CARGO_CFG_TARGET_OS", "linux") && is_own {
        println!("cargo::rustc-link-arg-bins=-Wl,--strip-all");
    }
}
