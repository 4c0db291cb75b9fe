//! Analysis to bytes: text, JSON, Markdown, HTML, PNG. Pure.
