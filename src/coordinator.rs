//! Applies manifests, disrupts, watches, collects.
