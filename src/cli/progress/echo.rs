//! Hides the terminal's echo of Ctrl-C: `^C` would push the redrawn block down by one line and leave its first line
//! behind.

use std::io::stderr;

use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, tcgetpgrp};

/// Guard that stops the terminal on stderr from echoing control keys.
#[derive(Debug)]
pub(in crate::cli) struct NoControlEcho(Option<Termios>);

impl NoControlEcho {
    pub(super) fn begin() -> Self {
        let before = tcgetattr(stderr()).ok().filter(|_| is_ours());
        if let Some(before) = &before {
            let mut quiet = before.clone();
            quiet.local_flags.remove(LocalFlags::ECHOCTL);
            set(&quiet);
        }
        Self(before)
    }
}

impl Drop for NoControlEcho {
    fn drop(&mut self) {
        if let Some(before) = self.0.as_ref().filter(|_| is_ours()) {
            set(before);
        }
    }
}

/// Returns true if this process may change the terminal. The kernel would stop a background process that tried.
fn is_ours() -> bool {
    tcgetpgrp(stderr()) == Ok(getpgrp())
}

fn set(modes: &Termios) {
    // An error means that the terminal is gone and shows nothing.
    let _ = tcsetattr(stderr(), SetArg::TCSANOW, modes);
}
