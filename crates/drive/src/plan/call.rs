//! API calls in a plan, and the permissions that they need.

use std::fmt;

use kube::api::ApiResource;

use rolldrop_scenario::Workload;

/// Verb of an entry that is not a call but a program that the run starts on this machine.
const RUN: &str = "run";

/// Reason that the plan gives for reading an object that the run creates, or removes before it knows the object's UID.
pub(super) const LOST_ANSWER: &str =
    "only if the answer to the creation is lost: finds out whether it took effect";

/// A run's calls and their effects.
#[derive(Clone, Debug, Default)]
pub struct RunPlan {
    /// Calls in order; a repeated call is listed only once.
    pub calls: Vec<Call>,
    /// Descriptions of what the run creates, changes and terminates, one line each. Empty if the run only watches.
    pub effects: Vec<String>,
    /// Descriptions of objects that the run creates for its own purposes, one line each. They affect nothing else.
    pub own: Vec<String>,
    /// Workloads that the run marks as in use.
    pub holds: Vec<Workload>,
    /// Warnings to read before the run starts, one line each.
    pub warnings: Vec<String>,
    /// Warnings about the result, one line each; they become findings of the run.
    pub findings: Vec<String>,
}

/// A call to the API server.
#[derive(Clone, Debug)]
pub struct Call {
    verb: &'static str,
    pub(crate) path: String,
    pub(super) why: String,
    right: Option<Right>,
}

/// The permission that a call needs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Right {
    pub(super) verb: &'static str,
    /// Object or kind. A name that is known only later is left out.
    pub(super) about: About,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, why, .. } = self;
        write!(f, "{:<6} {path}    # {why}", self.method())
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, about: About { resource, subresource, namespace, name } } = self;
        write!(f, "{verb} {}", resource.plural)?;
        if !resource.group.is_empty() {
            write!(f, ".{}", resource.group)?;
        }
        if !subresource.is_empty() {
            write!(f, "/{subresource}")?;
        }
        if let Some(ObjectName::Known(name)) = name {
            write!(f, " {name}")?;
        }
        match namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            None => f.write_str(" in the cluster"),
        }
    }
}

impl Call {
    /// Returns true if the call needs permission to apply this verb to objects of a matching kind.
    pub(super) fn is_about(&self, verb: &str, kind: impl Fn(&str) -> bool) -> bool {
        self.right.as_ref().is_some_and(|right| right.verb == verb && kind(&right.about.resource.kind))
    }

    /// Returns the HTTP method; `RUN` for a program that the run starts. The program's own calls are not listed.
    pub fn method(&self) -> &'static str {
        match self.verb {
            "create" => "POST",
            RUN => "RUN",
            "patch" => "PATCH",
            "delete" => "DELETE",
            _ => "GET",
        }
    }
}

/// Object, or kind of object, that a call is about.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct About {
    pub(super) resource: ApiResource,
    pub(super) subresource: &'static str,
    pub(super) namespace: Option<String>,
    pub(super) name: Option<ObjectName>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum ObjectName {
    Known(String),
    /// Placeholder for a name that is known only later.
    Later(&'static str),
}

impl About {
    pub(super) fn all(resource: ApiResource, namespace: Option<&str>) -> Self {
        Self { resource, subresource: "", namespace: namespace.map(str::to_owned), name: None }
    }

    pub(super) fn named(self, name: &str) -> Self {
        Self { name: Some(ObjectName::Known(name.to_owned())), ..self }
    }

    pub(super) fn later(self, which: &'static str) -> Self {
        Self { name: Some(ObjectName::Later(which)), ..self }
    }

    pub(super) fn known_name(&self) -> Option<String> {
        match &self.name {
            Some(ObjectName::Known(name)) => Some(name.clone()),
            Some(ObjectName::Later(_)) | None => None,
        }
    }

    fn path(&self) -> String {
        let Self { resource, subresource, namespace, name } = self;
        let mut path = root(resource);
        path.extend(namespace.iter().map(|namespace| format!("/namespaces/{namespace}")));
        path.push_str(&format!("/{}", resource.plural));
        path.extend(name.iter().map(|name| match name {
            ObjectName::Known(name) => format!("/{name}"),
            ObjectName::Later(which) => format!("/{{{which}}}"),
        }));
        if !subresource.is_empty() {
            path.push_str(&format!("/{subresource}"));
        }
        path
    }
}

impl RunPlan {
    /// Adds a call that the run needs.
    pub(super) fn must(&mut self, verb: &'static str, about: &About, why: impl Into<String>) {
        self.helps(verb, about, why);
        let name = about.known_name().map(ObjectName::Known);
        let right = Right { verb, about: About { name, ..about.clone() } };
        if let Some(call) = self.calls.last_mut() {
            call.right = Some(right);
        }
    }

    /// Adds a call that the run can do without.
    pub(super) fn helps(&mut self, verb: &'static str, about: &About, why: impl Into<String>) {
        let watch = if verb == "watch" { "?watch=true" } else { "" };
        self.push(verb, about.path() + watch, why);
    }

    /// Adds a program that the run starts on this machine.
    pub(super) fn runs(&mut self, words: &[String], why: impl Into<String>) {
        self.push(RUN, words.join(" "), why);
    }

    /// Adds a call that any authenticated user may make.
    pub(super) fn open_call(&mut self, path: impl Into<String>, why: &str) {
        self.push("get", path, why);
    }

    /// Adds the call that looks up a kind in its API group.
    pub(super) fn discovers(&mut self, about: &About) {
        self.open_call(root(&about.resource), "looks up the kind");
    }

    /// Adds the creation of an object of this kind. Adds its removal, under the name that it then has, to `undo`.
    pub(super) fn creates(
        &mut self,
        kind: &About,
        created: &About,
        why: impl Into<String>,
        undo: &mut RunPlan,
    ) {
        self.discovers(kind);
        self.must("create", kind, why);
        // Permission to read Secrets is too much to ask for. The owner of an unseen one takes it along when it is deleted.
        if created.resource.kind != "Secret" {
            self.must("get", created, LOST_ANSWER);
        }
        undo.must("delete", created, "removes it and everything it owns");
        undo.discovers(kind);
    }

    /// Adds the calls that restore an object. They are added in reverse order.
    pub(super) fn restores(&mut self, about: &About) {
        self.must("patch", about, "restores it, with a merge patch");
        self.must("get", about, "its state at that time");
        self.discovers(about);
    }

    fn push(&mut self, verb: &'static str, path: impl Into<String>, why: impl Into<String>) {
        self.calls.push(Call { verb, path: path.into(), why: why.into(), right: None });
    }

    /// Returns the permissions that the calls need, each once.
    pub(crate) fn rights(&self) -> Vec<Right> {
        let mut rights: Vec<Right> = Vec::new();
        for right in self.calls.iter().filter_map(|call| call.right.as_ref()) {
            if !rights.contains(right) {
                rights.push(right.clone());
            }
        }
        rights
    }
}

/// Returns the API path to a group's resources.
fn root(resource: &ApiResource) -> String {
    let ApiResource { group, version, .. } = resource;
    if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") }
}
