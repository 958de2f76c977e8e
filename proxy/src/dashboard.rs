//! The page for people at `/` of the admin listener, served from the binary: no asset comes from
//! elsewhere, nothing is built.
//!
//! What it shows comes from outside in part (owners, paths, errors). The page makes text nodes of
//! it, and the policy below keeps a browser from running any script but the page's own, should the
//! page ever fail to.

use bytes::Bytes;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, Response};

/// What the page may load and do: its own scripts, styles and questions, and no more. Text never
/// becomes markup (`trusted-types`).
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// A file of the dashboard.
#[derive(Debug)]
pub struct Asset {
    /// Where it is served.
    pub path: &'static str,
    /// Its media type.
    pub kind: &'static str,
    /// What it is.
    pub body: &'static str,
}

macro_rules! asset {
    ($file:literal, $kind:expr) => {
        asset!($file, $kind, concat!("/dashboard/", $file))
    };
    ($file:literal, $kind:expr, $path:expr) => {
        Asset { path: $path, kind: $kind, body: include_str!(concat!("dashboard/", $file)) }
    };
}

/// All of the dashboard.
pub static ASSETS: [Asset; 25] = [
    asset!("index.html", HTML, "/"),
    asset!("app.css", CSS),
    asset!("app.js", JAVASCRIPT),
    asset!("address.js", JAVASCRIPT),
    asset!("chart.js", JAVASCRIPT),
    asset!("decisions.js", JAVASCRIPT),
    asset!("detail.js", JAVASCRIPT),
    asset!("dom.js", JAVASCRIPT),
    asset!("feed.js", JAVASCRIPT),
    asset!("filters.js", JAVASCRIPT),
    asset!("group.js", JAVASCRIPT),
    asset!("model.js", JAVASCRIPT),
    asset!("owners.js", JAVASCRIPT),
    asset!("rates.js", JAVASCRIPT),
    asset!("reasons.js", JAVASCRIPT),
    asset!("row.js", JAVASCRIPT),
    asset!("tables.js", JAVASCRIPT),
    asset!("theme.js", JAVASCRIPT),
    asset!("tiles.js", JAVASCRIPT),
    asset!("time.js", JAVASCRIPT),
    asset!("timeline.js", JAVASCRIPT),
    asset!("timeline_input.js", JAVASCRIPT),
    asset!("tip.js", JAVASCRIPT),
    asset!("trouble.js", JAVASCRIPT),
    asset!("view.js", JAVASCRIPT),
];

/// The file at that path.
pub fn asset(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}

/// The answer to a GET or HEAD of that path; `None` if it is not the dashboard's. At `/`, it is not
/// for those who ask for text by name and not for HTML.
pub fn answer(path: &str, asked: &HeaderMap) -> Option<Response<Bytes>> {
    let asset = asset(path)?;
    if asset.path == "/" && accepts(asked, "text/plain") && !accepts(asked, "text/html") {
        return None;
    }
    let mut answer = Response::new(Bytes::from_static(asset.body.as_bytes()));
    for (name, value) in [
        (CONTENT_TYPE, asset.kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (OPENER_POLICY, "same-origin"),
        (RESOURCE_POLICY, "same-origin"),
        // Files of two versions of the binary are never mixed.
        (CACHE_CONTROL, "no-store"),
        (VARY, "accept"),
    ] {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    Some(answer)
}

/// Whether `Accept` (`text/html, */*;q=0.8`) names that kind, and does not turn it down.
pub(crate) fn accepts(headers: &HeaderMap, wanted: &str) -> bool {
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|item| {
        let (name, parameters) = item.split_once(';').unwrap_or((item, ""));
        let refused =
            parameters.split(';').filter_map(|parameter| parameter.trim().strip_prefix("q="));
        name.trim().eq_ignore_ascii_case(wanted)
            && refused.into_iter().all(|weight| weight.parse() != Ok(0.0))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap()))
            .collect()
    }

    #[test]
    fn every_file_of_the_folder_is_served_and_nothing_is_asked_for_that_is_not() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dashboard");
        let files = std::fs::read_dir(folder)
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap());
        let files: BTreeSet<String> = files.map(|file| format!("/dashboard/{file}")).collect();
        let served = ASSETS.iter().map(|asset| asset.path.replace("/dashboard/", "/")).map(
            |path| match path.as_str() {
                "/" => "/dashboard/index.html".to_owned(),
                path => format!("/dashboard{path}"),
            },
        );
        assert_eq!(served.collect::<BTreeSet<_>>(), files);
        for script in ASSETS.iter().filter(|asset| asset.kind == JAVASCRIPT) {
            for import in
                script.body.split("from \"./").skip(1).filter_map(|rest| rest.split('"').next())
            {
                assert!(
                    asset(&format!("/dashboard/{import}")).is_some(),
                    "{} imports {import}",
                    script.path
                );
            }
        }
    }

    #[test]
    fn no_file_makes_markup_of_text_or_holds_script_or_style_of_its_own() {
        for script in ASSETS.iter().filter(|asset| asset.kind == JAVASCRIPT) {
            for banned in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "DOMParser",
            ] {
                assert!(!script.body.contains(banned), "{} has {banned}", script.path);
            }
        }
        let page = asset("/").unwrap().body;
        assert!(!page.contains("style=") && !page.contains("<style"), "styles stand in app.css");
        assert_eq!(page.matches("<script").count(), 1, "scripts stand in files");
        assert!(
            ASSETS.iter().all(|asset| !asset.body.contains("https://")),
            "nothing comes from elsewhere"
        );
    }

    #[test]
    fn all_but_those_who_ask_for_text_get_the_page() {
        for accept in [
            "text/html",
            "text/plain, Text/HTML;q=0.5",
            "*/*",
            "text/*",
            "application/json",
            "text/plain;q=0",
            "",
        ] {
            let answer = answer("/", &headers(&[(ACCEPT, accept)])).unwrap();
            assert_eq!(answer.headers()[CONTENT_TYPE], HTML, "{accept}");
        }
        for accept in ["text/plain", "Text/Plain, */*;q=0.1", "text/html;q=0, text/plain"] {
            assert!(answer("/", &headers(&[(ACCEPT, accept)])).is_none(), "{accept}");
        }
        assert!(answer("/", &HeaderMap::new()).is_some());
        assert!(answer("/dashboard/app.js", &HeaderMap::new()).is_some());
        for path in
            ["/dashboard", "/dashboard/", "/dashboard/../app.js", "/dashboard/index.html", "/locks"]
        {
            assert!(answer(path, &headers(&[(ACCEPT, "text/html")])).is_none(), "{path}");
        }
    }

    #[test]
    fn the_policy_lets_no_foreign_script_in() {
        for asset in &ASSETS {
            let answer = answer(asset.path, &headers(&[(ACCEPT, "text/html")])).unwrap();
            let policy = answer.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
            for rule in [
                "default-src 'none'",
                "script-src 'self'",
                "frame-ancestors 'none'",
                "base-uri 'none'",
            ] {
                assert!(policy.split("; ").any(|part| part == rule), "{rule}: {policy}");
            }
            assert!(!policy.contains("unsafe"), "{policy}");
            assert_eq!(answer.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff");
        }
    }
}
