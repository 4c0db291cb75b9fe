//! The README and the guide, executed command by command as written.
//!
//! The table in `docs/README.md` lists the replaced strings, with reasons. It is read here, and not repeated anywhere.

use std::fmt::Write;
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ci::meets;
use crate::harness::{VENV, root, tracked};
use crate::lab::{Cluster, Setup};
use crate::load::Server;
use crate::machine::{Meanwhile, figure, measured};
use crate::runs::turn;
use crate::web::Web;

/// Exit status of a script that stops because a command's exit status differs from the page's.
const NOT_AS_WRITTEN: i32 = 99;

/// A command on a page, with its continuation: further lines, or a here-document.
#[derive(Debug, PartialEq)]
struct Written {
    line: usize,
    text: String,
}

impl Written {
    /// Returns the exit statuses that the page allows: 0, or those stated in a comment.
    fn allowed(&self) -> Vec<i32> {
        let Some(said) = self.text.split("exits with ").nth(1) else {
            return vec![0];
        };
        let digits = said.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        let status = digits.parse().unwrap_or_else(|e| panic!("line {}: {said}: {e}", self.line));
        if said[digits.len()..].starts_with(" if ") { vec![0, status] } else { vec![status] }
    }
}

/// Returns the commands in a page's `sh` blocks.
fn commands(page: &str) -> Vec<Written> {
    let mut found: Vec<Written> = Vec::new();
    let (mut is_shell, mut end_of_document, mut goes_on) = (false, None, false);
    for (number, line) in page.lines().enumerate() {
        if !is_shell || line == "```" {
            is_shell = line == "```sh";
            continue;
        }
        if end_of_document.is_some() || goes_on {
            let last = found.last_mut().expect("a continued command");
            write!(last.text, "\n{line}").expect("writing to a string");
        } else if !line.trim().is_empty() && !line.starts_with('#') {
            found.push(Written { line: number + 1, text: line.to_owned() });
        }
        match &end_of_document {
            Some(end) if line == end => end_of_document = None,
            Some(_) => {}
            None => {
                end_of_document =
                    line.split("<<'").nth(1).and_then(|rest| rest.split('\'').next()).map(str::to_owned);
            }
        }
        goes_on = end_of_document.is_none() && line.ends_with('\\');
    }
    found
}

/// A row in the table of `docs/README.md`.
struct Replaced {
    pages: String,
    from: String,
    to: String,
}

/// Returns the table of replaced strings.
fn replaced() -> Vec<Replaced> {
    let docs = tracked("docs/README.md");
    let table = docs.split("## Commands that are tested").nth(1).expect("the section");
    let rows = table.lines().filter(|line| line.starts_with("| README") || line.starts_with("| guide"));
    let rows: Vec<_> = rows
        .map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
            let code = |cell: &str| cell.trim().trim_matches('`').to_owned();
            Replaced { pages: cells[0].to_owned(), from: code(cells[1]), to: code(cells[2]) }
        })
        .collect();
    assert!(rows.len() > 3, "no table");
    rows
}

/// Wrapper around rolldrop that repeats a run, at most twice, if it was invalid because the machine was too busy.
const REPEATING: &str = r#"#!/bin/bash
[ "$1" = run ] || exec "$ROLLDROP" "$@"
for word in "$@"; do
  [ "$last" = --out ] && out=$word
  last=$word
done
for attempt in 1 2 3; do
  "$ROLLDROP" "$@"
  status=$?
  made=${out:-$(dirname "$(ls -t */result.json */*/result.json 2>/dev/null | head -n 1)")}
  [ $attempt -lt 3 ] && grep -qs '"state": *"invalid"' "$made/result.json" || exit $status
  rm -r "$made"
done
"#;

/// A directory in which a page's commands are run.
struct Desk {
    dir: tempfile::TempDir,
    kubeconfig: Option<PathBuf>,
}

impl Desk {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("bin")).expect("a directory");
        fs::create_dir(dir.path().join("work")).expect("a directory");
        let helm =
            format!("#!/bin/sh\nexec {VENV}/python {} \"$@\"\n", root().join("scripts/helm.py").display());
        for (name, text) in [("rolldrop", REPEATING), ("helm", &helm)] {
            let program = dir.path().join("bin").join(name);
            fs::write(&program, text).expect("a file");
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("its permissions");
        }
        Self { dir, kubeconfig: None }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("work").join(name)
    }

    /// Returns a script that runs a page's commands as written, except for the replacements in the table.
    fn script(page: &str, text: &str) -> String {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let (port, site) = (free.expect("a port").port().to_string(), Server::start().address.to_string());
        let replaced = replaced();
        let own: Vec<_> = replaced.iter().filter(|row| row.pages.contains(page)).collect();
        // A page that fails leaves nothing behind.
        let mut script = "trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n".to_owned();
        let commands = commands(text);
        assert!(commands.len() > 10, "{page}: {commands:?}");
        for row in &own {
            let is_used = commands.iter().any(|written| written.text.contains(&row.from));
            assert!(is_used, "docs/README.md replaces {:?}, which {page} does not contain", row.from);
        }
        for written in commands {
            let as_run = own.iter().fold(written.text.clone(), |text, row| text.replace(&row.from, &row.to));
            let as_run = as_run.replace("PORT", &port).replace("SITE", &site);
            let allowed = written.allowed().iter().map(|status| format!(" {status} ")).collect::<String>();
            let line = written.line;
            write!(
                script,
                "echo \"--- line {line}, after $SECONDS s\"; echo '--- line {line}' >&2\n{as_run}\nstatus=$?\n\
                 [[ '{allowed}' == *\" $status \"* ]] || {{ echo \"{page}, line {line}: exit status $status, \
                 not{allowed}\" >&2; exit {NOT_AS_WRITTEN}; }}\n"
            )
            .expect("writing to a string");
        }
        script
    }

    /// Runs a page's commands for at most `limit`, and checks each exit status against the page.
    fn run(&self, page: &str, text: &str, limit: &str) {
        let log = |name: &str| File::create(self.dir.path().join(name)).expect("a file");
        let said = |name: &str| fs::read_to_string(self.dir.path().join(name)).expect("a file");
        fs::write(self.dir.path().join("script"), Self::script(page, text)).expect("a file");
        let path = std::env::var("PATH").unwrap_or_default();
        // Commands on the pages may wait forever.
        let mut bash = Command::new("timeout");
        bash.args([limit, "bash", "../script"])
            .current_dir(self.dir.path().join("work"))
            .env("PATH", format!("{}:{VENV}:{path}", self.dir.path().join("bin").display()))
            .env("NO_COLOR", "1")
            .env("ROLLDROP", env!("CARGO_BIN_EXE_rolldrop"))
            .env("ROLLDROP_MAX_BUSY", "100%")
            .stdin(std::process::Stdio::null())
            .stdout(log("stdout"))
            .stderr(log("stderr"));
        match &self.kubeconfig {
            Some(kubeconfig) => bash.env("KUBECONFIG", kubeconfig),
            None => bash.env_remove("KUBECONFIG"),
        };
        let meanwhile = Meanwhile::begins();
        let status = bash.status().expect("bash starts");
        let both = || format!("{status}\n--- stdout\n{}\n--- stderr\n{}", said("stdout"), said("stderr"));
        // The exit status of most of these commands depends on a measurement.
        figure(meanwhile.taken(), status.success(), both);
        let stdout = said("stdout");
        println!("{page}\n{stdout}");
    }
}

/// Starts a cluster in place of the reader's, with the workload that the README describes.
fn staging(dir: &Path) -> Cluster {
    let cluster = Setup::new().start();
    let manifests = dir.join("shop.yaml");
    fs::write(&manifests, Web::new(4).args(&["--on-sigterm=exit"]).manifests()).expect("a file");
    cluster.kubectl("create namespace shop");
    cluster.kubectl(&format!("apply -n shop -f {}", manifests.display()));
    cluster.kubectl("rollout status -n shop deployment/web --timeout=300s");
    cluster.kubectl("config rename-context rolldrop staging");
    cluster
}

#[test]
fn readme_commands_produce_promised_files() {
    measured(|| {
        let _turn = turn();
        let mut desk = Desk::new();
        let cluster = staging(desk.dir.path());
        desk.kubeconfig = Some(cluster.kubeconfig());
        desk.run("README", &tracked("README.md"), "20m");
        for made in
            ["before/report.html", "after/comparison.html", "after/junit.xml", "mine.yaml", "web.yaml"]
        {
            assert!(desk.file(made).exists(), "{made}");
        }
    });
}

#[test]
fn guide_commands_run_as_written() {
    measured(|| {
        let _turn = turn();
        let desk = Desk::new();
        desk.run("guide", &tracked("docs/guide.md"), "20m");
        let made = |name: &str| desk.file("../rolldrop-guide").join(name);
        for name in ["naive/report.html", "before/charts/rollout.png", "tuning/patch.yaml", "gated/junit.xml"]
        {
            assert!(made(name).exists(), "{name}");
        }
        meets(&["--builtin-schema", "vendor.github-workflows"], made(".github/workflows/rollout.yml"));
    });
}

#[test]
fn watch_guide_commands_run_as_written() {
    measured(|| {
        let desk = Desk::new();
        std::os::unix::fs::symlink(root().join("charts"), desk.file("charts")).expect("a link");
        // Each of its waits ends after 5 minutes, and all commands together take 4.
        desk.run("watch-guide", &tracked("docs/watch-guide.md"), "10m");
    });
}

#[test]
fn parser_splits_page_into_commands() {
    let page = "```sh\n# a remark\nA=1\n\nrolldrop a \\\n  --b     # exits with 1\ncat > f <<'END'\n# x\n\ny\nEND\n\
                gate a   # exits with 3 if not\n```\n```yaml\nno: command\n```\n";
    let read = commands(page);
    let texts: Vec<_> = read.iter().map(|written| (written.line, written.text.as_str())).collect();
    assert_eq!(
        texts,
        [
            (3, "A=1"),
            (5, "rolldrop a \\\n  --b     # exits with 1"),
            (7, "cat > f <<'END'\n# x\n\ny\nEND"),
            (12, "gate a   # exits with 3 if not"),
        ]
    );
    assert_eq!(read[0].allowed(), [0]);
    assert_eq!(read[3].allowed(), [0, 3]);
}
