//! The web page (`ui/`), which is part of the program. It gets its data from the API like everybody else.

use std::sync::LazyLock;

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};

use super::ApiError;

/// A file of the page.
struct PageFile {
    name: &'static str,
    plain: &'static [u8],
    gzip: &'static [u8],
}

/// None when `ui/dist` was empty while this was compiled.
static FILES: &[PageFile] = include!(concat!(env!("OUT_DIR"), "/page_files.rs"));

const INDEX: &str = "index.html";
/// Only the page's own files, only requests to this server, no text as code, in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";
const NOT_BUILT: &str =
    "This server was built without its web page: run `make ui`, then build the server again.\n";

/// `/`, and the files that it loads.
pub(super) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route("/", get(index)).route("/assets/{name}", get(asset))
}

fn find(name: &str) -> Option<&'static PageFile> {
    FILES.iter().find(|file| file.name == name)
}

async fn index(headers: HeaderMap) -> Response {
    static TAG: LazyLock<HeaderValue> = LazyLock::new(|| tag(find(INDEX)));
    let Some(file) = find(INDEX) else {
        let plain = (header::CONTENT_TYPE, "text/plain; charset=utf-8");
        return (StatusCode::NOT_FOUND, [plain], NOT_BUILT).into_response();
    };
    let caching = [(header::ETAG, TAG.clone()), cache_control("no-cache")];
    if headers.get(header::IF_NONE_MATCH) == Some(&*TAG) {
        return (StatusCode::NOT_MODIFIED, caching).into_response();
    }
    let about = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    (caching, about, body(file, &headers)).into_response()
}

/// Names have a hash of what is in the file, so a file never changes.
async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    let Some(file) = find(&name).filter(|file| file.name != INDEX) else {
        return ApiError::new(StatusCode::NOT_FOUND, "there is no such path").into_response();
    };
    ([cache_control("public, max-age=31536000, immutable")], body(file, &headers)).into_response()
}

fn cache_control(value: &'static str) -> (HeaderName, HeaderValue) {
    (header::CACHE_CONTROL, HeaderValue::from_static(value))
}

/// An entity tag: the first 64 bits of the SHA-256 are enough.
fn tag(file: Option<&PageFile>) -> HeaderValue {
    let hash = Sha256::digest(file.map_or(&[][..], |file| file.plain));
    let hex: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    // Compressed or not, it is the same page: a weak tag.
    HeaderValue::try_from(format!("W/\"{hex}\"")).unwrap_or(HeaderValue::from_static("W/\"\""))
}

fn body(file: &'static PageFile, headers: &HeaderMap) -> Response {
    let accepted = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    let mut accepted = accepted.unwrap_or_default().split(',').map(str::trim);
    let about = [
        (header::CONTENT_TYPE, content_type(file.name)),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::VARY, "accept-encoding"),
    ];
    if accepted.any(|coding| coding == "gzip") {
        (about, [(header::CONTENT_ENCODING, "gzip")], file.gzip).into_response()
    } else {
        (about, file.plain).into_response()
    }
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        _ => "text/plain; charset=utf-8",
    }
}
