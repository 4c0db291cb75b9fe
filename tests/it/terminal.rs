//! Progress on a terminal and elsewhere, and completions: output for people and for pipes.

use std::process::Command;

use crate::harness::{Finished, Rolldrop};
use crate::load::Server;
use crate::runs::turn;

const LOAD: [&str; 5] = ["-r", "100", "-d", "2500ms", "--format"];

/// Runs a load on a pseudo-terminal of this width, with stdout redirected to a file. Returns the terminal's output and
/// the file's contents.
fn on_a_terminal(columns: u32, more: &str) -> (String, String) {
    let server = Server::start();
    shown_by(&format!("load {} {} json {more}", server.url("/lost"), LOAD.join(" ")), columns)
}

/// Returns a command's output on a terminal of this width with 24 rows, and the command's stdout.
fn shown_by(words: &str, columns: u32) -> (String, String) {
    let dir = tempfile::tempdir().expect("a directory");
    let command = format!("{} {words} > result", env!("CARGO_BIN_EXE_rolldrop"));
    let output = Command::new("script")
        .args([
            "--quiet",
            "--return",
            "--command",
            &format!("stty cols {columns} rows 24; {command}"),
            "typescript",
        ])
        .current_dir(dir.path())
        .env_remove("NO_COLOR")
        .env("ROLLDROP_MAX_BUSY", "100%")
        .output()
        .expect("script from bsdutils");
    let read =
        |name: &str| String::from_utf8_lossy(&std::fs::read(dir.path().join(name)).expect(name)).into_owned();
    // Exit status 3 means that the machine was too busy for figures.
    assert!(matches!(output.status.code(), Some(0 | 3)), "{}", read("typescript"));
    (read("typescript"), read("result"))
}

/// Returns the lines of a terminal's output, without codes that move the cursor.
fn lines(typescript: &str) -> Vec<String> {
    let mut text = String::new();
    let mut rest = typescript.chars();
    while let Some(c) = rest.next() {
        match c {
            '\u{1b}' => {
                let _ = rest.by_ref().find(|c| c.is_ascii_alphabetic());
                text.push('\n');
            }
            '\r' => text.push('\n'),
            c => text.push(c),
        }
    }
    text.lines().map(|line| line.trim_end().to_owned()).filter(|line| !line.is_empty()).collect()
}

#[test]
fn progress_block_fits_terminal_and_spares_stdout() {
    for columns in [40, 100] {
        let (typescript, result) = on_a_terminal(columns, "");
        let result: serde_json::Value = serde_json::from_str(&result).expect("nothing but JSON");
        assert_eq!(result["requests"]["dropped"], 250);
        let lines = lines(&typescript);
        let shown = |text: &str| lines.iter().any(|line| line.contains(text));
        for text in ["/250 requests", " s left", "offered ", "sent ", "in flight", "failed: ", "eof_before"] {
            assert!(shown(text), "{text:?} at {columns}: {lines:#?}");
        }
        // Lines in the block are padded to the terminal's width, so no line breaks separate them.
        let block = lines.iter().filter(|line| line.contains("in flight"));
        for line in block {
            let characters: Vec<char> = line.chars().collect();
            for row in characters.chunks(columns as usize) {
                let row: String = row.iter().collect();
                let begins =
                    row.starts_with(['█', '░', 'o']) || row.starts_with(|c: char| c.is_ascii_digit());
                assert!(
                    begins && !row.starts_with("ok"),
                    "{row:?} begins in the middle of a line at {columns}: {line}"
                );
            }
        }
    }
}

#[test]
fn no_color_and_quiet_reduce_output() {
    let (typescript, _) = on_a_terminal(80, "--quiet");
    assert!(!typescript.contains("in flight"), "{typescript}");
    let server = Server::start();
    let load = |args: &[&str]| -> Finished {
        Rolldrop::new(["load", &server.url("/")]).args(LOAD).args(["text"]).args(args).finish().expect_code(0)
    };
    let piped = load(&[]);
    let progress: Vec<_> = piped.stderr().lines().map(str::to_owned).collect();
    assert_eq!(progress, ["rolldrop: Ctrl-C ends the load and keeps the results"], "{piped}");
    assert!(!piped.stderr().contains('\u{1b}') && !piped.stdout().contains('\u{1b}'), "{piped}");
    assert!(piped.stdout().contains("250 requests, 100.0/s, fresh connections: all ok\n"), "{piped}");
    assert_eq!(load(&["--quiet"]).stderr(), "");
}

#[test]
fn terminal_shows_pods_action_and_losses() {
    let _turn = turn();
    // The exiting pod has some requests in flight, which are lost however soon its endpoint is removed.
    let sets = "load.duration=9s disruptions.0.repeat=1 expect={} target.path=/slow?ms=300";
    let sets: Vec<String> = sets.split(' ').map(|set| format!("--set {set}")).collect();
    let (typescript, _) = shown_by(&format!("run naive-exit {}", sets.join(" ")), 80);
    let lines = lines(&typescript);
    let shown = |parts: &[&str]| lines.iter().any(|line| parts.iter().all(|part| line.contains(part)));
    for parts in [
        &["waiting for the pods to be ready"][..],
        &["pods: ", " starting"],
        &["warm-up, ", " s left"],
        &["deletePod 1 pod matching app=web begins in ", " s"],
        &["/2700 requests, ", " s left"],
        &["pods: ", "2 ready", "1 terminating"],
        &["  web-", "terminating for "],
        &["deletePod 1 pod matching app=web is done"],
        &["lost at ", " s: ", " web-"],
        &["undoing the changes"],
    ] {
        assert!(shown(parts), "{parts:?}: {lines:#?}");
    }
    assert!(!typescript.contains("/3300 requests"), "the warm-up does not count: {lines:#?}");
    // The cursor moves back to the block's first line, so these moves show that the block was never taller than the
    // terminal.
    let moved = typescript.split("\u{1b}[").filter_map(|rest| rest.split_once('A')?.0.parse::<u32>().ok());
    let highest = moved.max().expect("a block of several lines");
    assert!((4..24).contains(&highest), "{highest} lines up");
}

#[test]
fn piped_progress_lists_events_and_states() {
    let _turn = turn();
    let drained = Rolldrop::run("drain").set(&["expect={}"]).measured().expect_code(0);
    let said = drained.stderr();
    let lines: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("rolldrop: ")).collect();
    let mut rest = lines.iter();
    for parts in [
        &["waiting for the pods to be ready"][..],
        &["web-", " ready"],
        &["sending the load"],
        &["drain node-1 begins"],
        &["web-", " begins to terminate"],
        &["web-", " cannot be evicted yet because of a disruption budget"],
        &["web-", " is gone"],
        &["evict 1 pod matching app=web is done"],
        &["waiting for the last pods to terminate"],
        &["undoing the changes"],
    ] {
        let found = rest.find(|line| parts.iter().all(|part| line.contains(part)));
        assert!(found.is_some(), "{parts:?} is missing, or appears too early\n{drained}");
    }
    let from = lines.iter().position(|line| *line == "sending the load").expect("the load");
    let widest = lines[from..].iter().map(|line| line.chars().count()).max();
    assert!(widest <= Some(120 - "rolldrop: ".len()), "{widest:?}\n{drained}");
    let states: Vec<_> = lines.iter().filter(|line| line.contains("/3600 requests, ")).collect();
    assert!((1..=3).contains(&states.len()), "one every 10 s\n{drained}");
    let is_whole = states.iter().all(|line| line.contains(" s left; ") && line.contains("; pods: "));
    assert!(is_whole, "{states:#?}");
}

#[test]
fn every_shell_gets_its_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = Rolldrop::new(["completions", shell]).finish().expect_code(0);
        assert!(script.stdout().contains("connect-timeout"), "{script}");
        let hidden = script.stdout().replace("load-workers", "").contains("load-worker");
        assert!(!hidden, "hidden commands stay hidden\n{script}");
    }
    // Shells accept their completion scripts and, where a script can ask them to, complete a word with them.
    let asked = [
        (
            "bash",
            ["-c"].as_slice(),
            "source ./script; COMP_WORDS=(rolldrop comp); COMP_CWORD=1; _rolldrop rolldrop comp rolldrop; \
             echo \"${COMPREPLY[*]}\"",
            "completions",
        ),
        (
            "zsh",
            &["-f", "-c"],
            "autoload -U compinit; compinit -D -u; source ./script; print ${_comps[rolldrop]}",
            "_rolldrop",
        ),
        (
            "fish",
            &["--no-config", "-c"],
            "source ./script; complete -C 'rolldrop comp'",
            "completions\tPrint a completion script for a shell",
        ),
    ];
    for (shell, options, question, answer) in asked {
        let script = Rolldrop::new(["completions", shell]).finish().expect_code(0);
        std::fs::write(script.dir().join("script"), script.stdout()).expect("a file");
        let output = Command::new(shell)
            .args(options)
            .arg(question)
            .current_dir(script.dir())
            .env("HOME", script.dir())
            .output()
            .unwrap_or_else(|e| panic!("{shell}: {e}; scripts/test installs it"));
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!((said.trim(), output.stderr.is_empty()), (answer, true), "{shell}: {output:?}");
    }
}

#[test]
fn explain_covers_names_and_suggests_similar_ones() {
    let all = Rolldrop::new(["explain"]).finish().expect_code(0);
    // The words that these shells offer; clap's scripts for other shells complete only options.
    let scripts = ["bash", "zsh"].map(|shell| Rolldrop::new(["completions", shell]).finish().expect_code(0));
    for name in ["connect_refused", "stale_flow", "dropped.perTermination", "not_working"] {
        assert!(all.stdout().lines().any(|line| line.split_whitespace().next() == Some(name)), "{all}");
        let one = Rolldrop::new(["explain", name]).finish().expect_code(0);
        assert!(
            one.stdout().starts_with(&format!("{name} (")) && one.stdout().contains("More: docs/"),
            "{one}"
        );
        for script in &scripts {
            assert!(script.stdout().contains(name), "{name}\n{script}");
        }
    }
    let unknown = Rolldrop::new(["explain", "staleflow"]).finish().expect_code(2);
    assert!(unknown.stderr().contains("; similar: stale_flow"), "{unknown}");
}

#[test]
fn every_command_has_a_man_page() {
    let pages = Rolldrop::new(["man", "share/man1"]).finish().expect_code(0);
    let page = |name: &str| std::fs::read_to_string(pages.dir().join("share/man1").join(name)).expect(name);
    assert!(page("rolldrop.1").contains("rolldrop\\-load(1)"), "{}", page("rolldrop.1"));
    let load = page("rolldrop-load.1");
    assert!(load.contains(".TH rolldrop-load 1") && load.contains("\\-\\-connect\\-timeout"), "{load}");
    assert!(!pages.dir().join("share/man1/rolldrop-load-worker.1").exists(), "hidden commands stay hidden");
    let printed = Rolldrop::new(["man"]).finish().expect_code(0);
    assert_eq!(printed.stdout(), page("rolldrop.1"));
    let refused = Rolldrop::new(["man", "/dev/null/man1"]).finish().expect_code(2);
    assert!(refused.stderr().contains("failed to write manual pages into /dev/null/man1"), "{refused}");
}
