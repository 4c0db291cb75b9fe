//! Entry point of the `rolldrop` program; all code is in the library.

fn main() -> std::process::ExitCode {
    rolldrop::cli::main()
}
