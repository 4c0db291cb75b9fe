//! Tests of manifest parsing, and of the errors for unreadable manifests.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn read(text: &str) -> Result<Vec<Value>, String> {
    let manifests = Manifests::parse("all.yaml", text).map_err(|error| error.to_string())?;
    Ok(manifests.objects().into_iter().map(|object| object.value).collect())
}

fn error(text: &str) -> String {
    read(text).expect_err(text)
}

/// Makes one edit, which must leave everything else in the text as it is.
fn edited(text: &str, pointer: &str, change: EditKind) -> String {
    let manifests = Manifests::parse("all.yaml", text).expect("manifests");
    let edit = ManifestEdit { document: 0, pointer: pointer.to_owned(), change };
    let Edited { text, notes } = manifests.edited(&[edit]);
    assert_eq!(notes, Vec::<String>::new(), "{text}");
    text
}

/// YAML requires a continuation to be indented further than its key. libyaml, and therefore kubectl, requires no
/// indentation.
#[test]
fn quoted_text_continues_at_any_indentation() {
    let crd = "\
kind: CustomResourceDefinition
spec:
  versions:
    - name: v1
      description: 'It is said
    that \"this\" goes on
here: # no comment

  to the end.' # a comment
      more: \"with \\\" an
 escape \\
and a fold\"
      # it's no quote
      - : last
";
    let crd = &crd.replace("      - : last\n", "      last: \u{e9}\n");
    let description = "It is said that \"this\" goes on here: # no comment\nto the end.";
    let version = json!({"name": "v1", "description": description, "more": "with \" an escape and a fold", "last": "\u{e9}"});
    let whole = json!({"kind": "CustomResourceDefinition", "spec": {"versions": [version]}});
    assert_eq!(read(crd).unwrap(), std::slice::from_ref(&whole));
    let twice = format!("{crd}---\n{crd}");
    assert_eq!(read(&twice).unwrap(), [whole.clone(), whole]);
    let set = edited(crd, "/spec/versions/0/last", EditKind::Set("new".into()));
    assert_eq!(set, crd.replace('\u{e9}', "new"));
    assert!(error("a: 'b\n--- c'\n").starts_with("all.yaml:1: "), "{}", error("a: 'b\n--- c'\n"));
}

#[test]
fn parse_error_names_line_and_remedy() {
    for (text, said) in [
        (
            "a: 1\n---\nspec:\n  replicas: 1\n  replicas: 2\n",
            "all.yaml:5: spec.replicas is given twice, first on line 4: remove one",
        ),
        ("{\"a\": [\n1,\n\"b]}", "all.yaml:3: this JSON ends too early: close its quotes and brackets"),
        ("a: 1\n\tb: 2\n", "all.yaml:2: a tab in the indentation: use spaces"),
        ("a: [1\n", "all.yaml:1: '[' is not closed: close it, or put a value that begins with '[' in quotes"),
        (
            "a: b: c\n",
            "all.yaml:1: unexpected key: check the indentation, or put a value with ': ' in quotes",
        ),
        ("a: 1\nb\nc: 2\n", "all.yaml:2: ':' is missing after a key: add it"),
        ("a: 'b\n", "all.yaml:1: a quote is not closed: close it"),
        ("a: \"b\" c\n", "all.yaml:1: text follows the closing quote: put the whole value in quotes"),
        ("a: @b\n", "all.yaml:1: a value cannot begin with '@': put the value in quotes"),
        (
            "a: *b\n",
            "all.yaml:1: this alias has no anchor before it: add '&NAME' to the value that it stands for",
        ),
        ("a: \"\\d\"\n", "all.yaml:1: YAML has no such '\\' escape: use single quotes, or '\\\\'"),
        (
            "a:\n  - b\n c: d\n",
            "all.yaml:3: this line does not fit the lines before it: check its indentation, and the quotes before it",
        ),
        ("? [a]\n: b\n", "all.yaml:1: a mapping or list cannot be a key: put the key in quotes"),
    ] {
        assert_eq!(error(text), said, "{text}");
    }
    let deep = "[".repeat(10_000);
    assert!(error(&deep).contains("collections are nested too deeply"), "{}", error(&deep));
    let bomb: String = (0..9)
        .map(|n| format!("a{}: &a{} [{}]\n", n + 1, n + 1, vec![format!("*a{n}"); 9].join(", ")))
        .collect();
    assert!(error(&format!("a0: &a0 x\n{bomb}")).contains("aliases expand to more than"), "{bomb}");
}

#[test]
fn template_error_suggests_rendering() {
    let said = |line: usize, text: &str| {
        format!(
            "all.yaml:{line}: this is a template ({text}), not a manifest: render it first, for example with helm template CHART"
        )
    };
    for (text, line, action) in [
        ("kind: Deployment\nmetadata:\n  name: {{ .Values.name }}\nspec: {}\n", 3, "{{ .Values.name }}"),
        ("{{- if .Values.on }}\nkind: Deployment\n{{- end }}\n", 1, "{{- if .Values.on }}"),
        (
            "a: 1\n{{- range $k, $v := .Values.all }}\nb: 2\n{{ end }}\n",
            2,
            "{{- range $k, $v := .Values.all }}",
        ),
        (
            "spec:\n  labels:\n    {{- include \"x\" . | nindent 4 }}\n  a: b\n",
            3,
            "{{- include \"x\" . | nindent 4 }}",
        ),
        ("spec:\n  - {{ toYaml .x }}: b\n  {{ y }}\n", 2, "{{ toYaml .x }}"),
        ("{%- if x %}\na: 1\n{% endif %}\n", 1, "{%- if x %}"),
    ] {
        assert_eq!(error(text), said(line, action), "{text}");
    }
    // A template inside a value does not make the manifest a template.
    let text = "kind: ConfigMap\ndata:\n  a: |\n    {{ if x }}\n  b: '{{ y }}'\n";
    assert_eq!(read(text).unwrap()[0]["data"]["a"], "{{ if x }}\n");
}

#[test]
fn aliases_and_merge_keys_are_resolved() {
    let text = "a: &a {x: 1, k: 2}\nb: {<<: *a, k: 3}\nc: {<<: [*a, {z: 4}]}\n";
    let is = json!({"a": {"x": 1, "k": 2}, "b": {"x": 1, "k": 3}, "c": {"x": 1, "k": 2, "z": 4}});
    assert_eq!(read(text).unwrap(), [is]);
}

#[test]
fn empty_documents_yield_no_object() {
    assert_eq!(read("").unwrap(), Vec::<Value>::new());
    let text = "# a\n---\n---\n# b\n---\na: 1\n...\n---\n\n--- # c\nb: 2\n";
    assert_eq!(read(text).unwrap(), [json!({"a": 1}), json!({"b": 2})]);
    let kept = edited("---\n---\na: 1 # c\n", "/a", EditKind::Set(2.into()));
    assert_eq!(kept, "---\n---\na: 2 # c\n");
}

#[test]
fn undone_edits_leave_no_trace() {
    let text = "\
a:
  # first
  b: 1 # one
  list:
  - x: 1
    y: |+
      text

  - x: 2
  # last
  empty:
c: {d: [], e: {f: 1}}
";
    let set = |pointer: &str, value: Value| edited(text, pointer, EditKind::Set(value));
    let push = |pointer: &str, value: Value| edited(text, pointer, EditKind::Push(value));
    for (there, pointer, line) in [
        (set("/a/new", json!("x")), "/a/new", "  empty:\n  new: x\n"),
        (
            set("/a/new", json!({"x": [1, {"k": "on"}]})),
            "/a/new",
            "  empty:\n  new:\n    x:\n    - 1\n    - k: \"on\"\n",
        ),
        (
            set("/a/list/0/z", json!(["1", 2])),
            "/a/list/0/z",
            "      text\n\n    z:\n      - \"1\"\n      - 2\n  - x: 2\n",
        ),
        (
            push("/a/list", json!({"k": [4], "x": 3})),
            "/a/list/2",
            "  - x: 2\n  - k:\n    - 4\n    x: 3\n  # last\n",
        ),
        (push("/c/d", json!({"x": 3})), "/c/d/0", "c: {d: [ {\"x\": 3}], e: {f: 1}}\n"),
        (set("/c/e/g", json!(2)), "/c/e/g", "c: {d: [], e: {f: 1, g: 2}}\n"),
    ] {
        assert!(there.contains(line), "{there}");
        assert_eq!(edited(&there, pointer, EditKind::Remove), text, "{pointer}");
    }
    for (pointer, value, line) in [
        ("/a/b", json!("yes"), "  b: \"yes\" # one\n"),
        ("/a/b", json!({"z": 1}), "  b:\n    z: 1 # one\n"),
        ("/a/empty", json!(1), "  empty: 1\n"),
        ("/a/empty", json!([1]), "  empty:\n    - 1\n"),
        ("/a/list", json!([]), "  list: []\n  # last\n"),
        ("/c/d", json!([1]), "c: {d: [1], e: {f: 1}}\n"),
    ] {
        assert!(set(pointer, value).contains(line), "{pointer}");
    }
    for (pointer, gone) in [
        ("/a/b", "  b: 1 # one\n"),
        ("/a/list/0", "  - x: 1\n    y: |+\n      text\n\n"),
        ("/a/list/1", "  - x: 2\n"),
        ("/a/list/0/x", "x: 1\n    "),
        ("/a/empty", "  empty:\n"),
        ("/c", "c: {d: [], e: {f: 1}}\n"),
    ] {
        assert_eq!(edited(text, pointer, EditKind::Remove), text.replacen(gone, "", 1), "{pointer}");
    }
}

/// Manifests with many kinds of content, for the property tests to mangle.
const SEED: &str = "\
kind: Deployment # a comment
metadata: {name: 'web', labels: &l {app: \"w\\u00e9b\"}}
spec:
  template:
    metadata: {labels: *l}
    spec:
      containers:
      - name: app
        args: [a, 'b
 c', |]
        note: \"with
  less \\
 indentation\"
        env: |+
          kept

        ports:
        - containerPort: 0x50
---
{\"kind\": \"Service\", \"spec\": {\"ports\": []}}
";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Text made of manifest fragments is either read or refused with an error that names the file. An edit leaves all
    /// other values unchanged.
    #[test]
    fn mangled_text_parses_or_error_names_file(
        cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..5),
        between in prop::sample::select(vec!["", "\n", "'", "\"", "- ", ": ", "[", "{", "\t", "\u{e9}", "---\n", "|+\n", "&a ", "*l", "!x ", "#", "\r\n", "{{ x }}"]),
    ) {
        let bounds: Vec<usize> = (0..=SEED.len()).filter(|at| SEED.is_char_boundary(*at)).collect();
        let pieces: Vec<&str> = cuts
            .iter()
            .map(|(one, other)| {
                let (one, other) = (*one.get(&bounds), *other.get(&bounds));
                &SEED[one.min(other)..one.max(other)]
            })
            .collect();
        let text = pieces.join(between);
        match Manifests::parse("all.yaml", &text) {
            Err(error) => assert!(error.to_string().starts_with("all.yaml:"), "{error}"),
            Ok(manifests) => {
                let objects = manifests.objects();
                let Some(object) = objects.iter().find(|object| object.value.is_object()) else { return Ok(()) };
                let mut wanted: Vec<Value> = objects.iter().map(|object| object.value.clone()).collect();
                let edit = object.set("/added", json!({"a": ["b"]}));
                let place = objects.iter().position(|one| one.document == object.document && one.at == object.at);
                wanted[place.unwrap()]["added"] = json!({"a": ["b"]});
                let Edited { text: there, .. } = manifests.edited(&[edit]);
                prop_assert_eq!(read(&there).unwrap(), wanted, "{}", there);
            }
        }
    }
}
