// After the token was given, the page that was asked for is opened, not the first one.

document.querySelector("form").action = `/${location.hash}`;
