# Short names for the commands of CONTRIBUTING.md. Nothing depends on this file: .ci/run and scripts/test are the source.

# Lists the commands.
[private]
default:
    @just --list

# Build the program
build *args:
    cargo build --locked {{ args }}

# Run the unit tests of one crate, such as `just unit explain`
unit crate *filter:
    cargo test --locked --package {{ if crate == "rolldrop" { crate } else { "rolldrop-" + crate } }} --lib {{ filter }}

# Run tests of the whole program by name, such as `just it docs::`
it +filter:
    cargo test --locked --test it -- {{ filter }}

# Run all tests, and install what they need (Debian or Ubuntu, as root)
test *args:
    scripts/test {{ args }}

# Check format and lints
lint:
    cargo fmt --all --check
    cargo clippy --locked --all-targets -- -D warnings

# Make the documentation of the code, and check the pages of the docs
docs:
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --document-private-items
    cargo test --locked --test it -- docs:: tidy::

# Run what every change must pass
ci:
    .ci/run

# Count lines, comments and names; of a revision, if one is named
lines *revision:
    scripts/lines {{ revision }}
