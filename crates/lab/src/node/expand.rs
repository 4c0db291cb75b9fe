//! Expands `$(NAME)` in commands, arguments and values. Pure.
//!
//! Source: kubernetes/kubernetes, `third_party/forked/golang/expansion/expand.go`.

/// Replaces `$(NAME)` with the value that `lookup` returns, leaves unknown names unchanged, and turns `$$` into a
/// literal `$`.
pub(super) fn expand(text: &str, lookup: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            match lookup(name) {
                Some(value) => out.push_str(&value),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expansion_handles_escapes_and_unknown_names() {
        let lookup = |name: &str| (name == "POD_IP").then(|| "127.64.1.1".to_owned());
        for (text, expected) in [
            ("$(POD_IP):8080", "127.64.1.1:8080"),
            ("a$(POD_IP)b$(POD_IP)", "a127.64.1.1b127.64.1.1"),
            ("$$(POD_IP)", "$(POD_IP)"),
            ("$$$(POD_IP)", "$127.64.1.1"),
            ("$(NOPE)", "$(NOPE)"),
            ("$(POD_IP", "$(POD_IP"),
            ("$POD_IP", "$POD_IP"),
            ("cost: 5$", "cost: 5$"),
            ("", ""),
        ] {
            assert_eq!(expand(text, lookup), expected, "{text}");
        }
    }
}
