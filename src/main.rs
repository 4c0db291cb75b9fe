//! The `rolldrop` program; everything is in the library.

fn main() -> std::process::ExitCode {
    rolldrop::cli::main()
}
