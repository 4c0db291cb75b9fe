//! Events as lines for a pipe or a log. No line is wider than [`COLUMNS`], and simultaneous events of many pods share
//! one line.

/// Maximum width of a line, in columns.
pub(super) const COLUMNS: usize = 120;

/// An event to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// An event of the pod with this name.
    Pod(PodNews, String),
    /// Text that is shown unchanged.
    Said(String),
}

/// Event of a pod: the words for one pod, and for several.
pub(super) type PodNews = [&'static str; 2];

pub(super) const GONE: PodNews = ["is gone", "are gone"];
pub(super) const HELD: PodNews = ["cannot be evicted yet because of a disruption budget"; 2];

/// Formats events as lines, each at most `width` columns wide.
pub(super) fn lines(news: &[News], width: usize) -> Vec<String> {
    let mut folded: Vec<(Option<PodNews>, Vec<&str>)> = Vec::new();
    for one in news {
        match one {
            News::Said(text) => folded.push((None, vec![text])),
            News::Pod(what, pod) => match folded.iter_mut().find(|(of, _)| *of == Some(*what)) {
                Some((_, pods)) => pods.push(pod),
                None => folded.push((Some(*what), vec![pod])),
            },
        }
    }
    let lines = |(what, names): (Option<PodNews>, Vec<&str>)| match (what, names.as_slice()) {
        (Some([one, _]), [pod]) => vec![fit(&format!("{pod} {one}"), width)],
        (Some([_, many]), pods) => vec![listed(&format!("{} pods {many}: ", pods.len()), pods, width)],
        (None, said) => wrapped(&said.concat(), width),
    };
    folded.into_iter().flat_map(lines).collect()
}

/// Lists as many names as fit on a line after `beginning`, and counts the others.
fn listed(beginning: &str, names: &[&str], width: usize) -> String {
    let with = |number: usize| {
        let more =
            if number < names.len() { format!(" and {} more", names.len() - number) } else { String::new() };
        format!("{beginning}{}{more}", names[..number].join(", "))
    };
    let fits = |number: &usize| console::measure_text_width(&with(*number)) <= width;
    let number = (1..=names.len()).rev().find(fits);
    fit(&with(number.unwrap_or(1)), width)
}

/// Wraps text into lines of at most this width.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let options = textwrap::Options::new(width.max(1)).word_splitter(textwrap::WordSplitter::NoHyphenation);
    let lines = textwrap::wrap(text, options.subsequent_indent("  "));
    lines.into_iter().map(std::borrow::Cow::into_owned).collect()
}

/// Joins as many parts as fit on a line; earlier parts take precedence.
pub(super) fn joined(parts: impl IntoIterator<Item = String>, width: usize) -> String {
    let mut line = String::new();
    for part in parts {
        let more = if line.is_empty() { fit(&part, width) } else { format!("; {part}") };
        if console::measure_text_width(&line) + console::measure_text_width(&more) <= width {
            line.push_str(&more);
        }
    }
    line
}

/// Truncates text to this width.
pub(super) fn fit(text: &str, width: usize) -> String {
    console::truncate_str(text, width.max(1), "…").into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simultaneous_pod_news_shares_one_line() {
        let pod = |what, n: usize| News::Pod(what, format!("web-5f7d8c9b4-{n:05}"));
        let terminates = ["begins to terminate", "begin to terminate"];
        let mut news = vec![News::Said("drain node-2 begins".into()), pod(terminates, 0)];
        assert_eq!(lines(&news, COLUMNS), ["drain node-2 begins", "web-5f7d8c9b4-00000 begins to terminate"]);
        for n in 1..40 {
            news.extend([pod(terminates, n), pod(GONE, n)]);
        }
        insta::assert_snapshot!(lines(&news, 70).join("\n"), @r"
        drain node-2 begins
        40 pods begin to terminate: web-5f7d8c9b4-00000 and 39 more
        39 pods are gone: web-5f7d8c9b4-00001, web-5f7d8c9b4-00002 and 37 more
        ");
    }

    #[test]
    fn overlong_line_drops_middle_parts() {
        let parts = ["a long beginning", "which is followed", "end"].map(str::to_owned);
        assert_eq!(joined(parts.clone(), 80), "a long beginning; which is followed; end");
        assert_eq!(joined(parts.clone(), 22), "a long beginning; end");
        assert_eq!(joined(parts, 10), "a long be…");
    }
}
