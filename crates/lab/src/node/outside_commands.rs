//! Detects commands that would signal processes outside their pod on the userspace dataplane, where containers see all
//! of the machine's processes and process 1 is the machine's own.
//!
//! It checks only the words of a command, not what the program itself does.

/// Processes outside its pod that a command would signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Outside {
    /// `kill 1`.
    #[error(
        "it would signal process 1, which is this machine's own on the userspace dataplane; use the kernel dataplane"
    )]
    Process1,
    /// `kill -TERM -1`.
    #[error(
        "it would signal all processes on this machine, because pods share them on the userspace dataplane; use the \
         kernel dataplane"
    )]
    All,
    /// `pkill nginx`.
    #[error(
        "it would signal processes by name, which on the userspace dataplane includes other processes on this machine; \
         use the kernel dataplane"
    )]
    ByName,
}

impl Outside {
    /// Finds the processes outside the pod that these words of a command would signal.
    pub(super) fn of<'a>(words: impl IntoIterator<Item = &'a String>) -> Option<Self> {
        // A word with spaces is a script; the other words form one command.
        let (scripts, words): (Vec<&str>, Vec<&str>) =
            words.into_iter().map(String::as_str).partition(|word| word.contains(char::is_whitespace));
        let mut commands = vec![words];
        for script in scripts {
            let ends = [';', '|', '&', '\n', '(', ')', '{', '}', '`'];
            commands.extend(script.split(ends).map(|command| command.split_whitespace().collect()));
        }
        let commands: Vec<Vec<&str>> = commands
            .into_iter()
            .map(|words| words.into_iter().map(|word| program(word.trim_matches(['"', '\'']))).collect())
            .collect();
        let has = |names: &[&str]| commands.iter().flatten().any(|word| names.contains(word));
        if has(&["pkill", "killall", "killall5"]) || (has(&["kill"]) && has(&["pidof", "pgrep"])) {
            return Some(Self::ByName);
        }
        commands.iter().find_map(|words| {
            let kill = words.iter().position(|word| *word == "kill")?;
            Self::of_kill(&words[kill + 1..])
        })
    }

    /// Finds such processes in the words that follow `kill`.
    fn of_kill(words: &[&str]) -> Option<Self> {
        let targets = match words {
            ["-s" | "-n" | "--signal" | "-signal", _signal, targets @ ..] => targets,
            [signal, targets @ ..] if signal.starts_with('-') => targets,
            targets => targets,
        };
        targets.iter().find_map(|target| match *target {
            "1" => Some(Self::Process1),
            "-1" => Some(Self::All),
            _ => None,
        })
    }
}

/// Returns the name of a program from its path.
fn program(word: &str) -> &str {
    match word.rsplit_once('/') {
        Some((_, name)) => name,
        None => word,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Option<Outside> {
        Outside::of(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn kill_outside_container_is_detected() {
        for words in [
            &["kill", "1"][..],
            &["kill", "-QUIT", "1"],
            &["/bin/kill", "-s", "TERM", "1"],
            &["kill", "-n", "3", "--", "1"],
            &["timeout", "5", "kill", "1"],
            &["sh", "-c", "kill 1"],
            &["sh", "-c", "sleep 5; kill -s QUIT 1 && echo done"],
            &["bash", "-ec", "if true; then (kill -TERM '1'); fi"],
            &["sh", "-c", "kill -1 1"],
        ] {
            assert_eq!(of(words), Some(Outside::Process1), "{words:?}");
        }
        for words in [&["kill", "--", "-1"][..], &["sh", "-c", "kill -9 -1"]] {
            assert_eq!(of(words), Some(Outside::All), "{words:?}");
        }
        for script in
            ["pkill -QUIT nginx", "kill -QUIT $(pidof nginx)", "pgrep nginx | xargs kill", "killall a"]
        {
            assert_eq!(of(&["sh", "-c", script]), Some(Outside::ByName), "{script}");
        }
        for script in [
            "kill -QUIT $PID",
            "kill -1 $(cat /run/nginx.pid)",
            "kill $! ; sleep 1",
            "nginx -s quit && sleep 1",
            "pgrep nginx",
        ] {
            assert_eq!(of(&["sh", "-c", script]), None, "{script}");
        }
        assert_eq!(of(&["kill", "-9", "12"]), None);
        assert_eq!(of(&["sleep", "1"]), None);
    }
}
