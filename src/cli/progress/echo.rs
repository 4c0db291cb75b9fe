//! Hides the terminal's echo of Ctrl-C: `^C` would push a redrawn block down by one line, and the block's first line
//! would stay.

#[cfg(unix)]
pub(super) use unix::NoControlEcho;

/// Guard: while it lives, the terminal behind stderr does not show which control key was pressed.
#[cfg(not(unix))]
#[derive(Debug)]
pub(in crate::cli) struct NoControlEcho;

#[cfg(not(unix))]
impl NoControlEcho {
    pub(super) fn begin() -> Self {
        Self
    }
}

#[cfg(unix)]
mod unix {
    use std::io::stderr;

    use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
    use nix::unistd::{getpgrp, tcgetpgrp};

    /// Guard: while it lives, the terminal behind stderr does not show which control key was pressed.
    #[derive(Debug)]
    pub(in crate::cli) struct NoControlEcho(Option<Termios>);

    impl NoControlEcho {
        pub(in crate::cli::progress) fn begin() -> Self {
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

    /// Returns true if this process may change the terminal: the kernel would stop a background process that does.
    fn is_ours() -> bool {
        tcgetpgrp(stderr()) == Ok(getpgrp())
    }

    fn set(modes: &Termios) {
        // A terminal that has gone shows nothing.
        let _ = tcsetattr(stderr(), SetArg::TCSANOW, modes);
    }
}
