import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { logIn } from "../api/client";
import { fieldOf } from "../model/text";

export function Login(props: { onDone: () => void }) {
  const [error, setError] = useState<string | null>(null);
  const submit = async (event: JSX.TargetedSubmitEvent<HTMLFormElement>) => {
    event.preventDefault();
    const token = fieldOf(event.currentTarget, "token");
    const refused = await logIn(token);
    setError(refused);
    if (refused === null) props.onDone();
  };
  return (
    <main class="login">
      <h1>vmscope</h1>
      <form onSubmit={(event) => void submit(event)}>
        <label>
          Token{" "}
          <input name="token" type="password" required autocomplete="current-password" autofocus />
        </label>
        <button type="submit">Log in</button>
        {error !== null && (
          <p class="error" role="alert">
            Not logged in: {error}.
          </p>
        )}
      </form>
      <p class="faint">
        An administrator makes tokens with the role <code>read</code>:{" "}
        <code>vmscope-server token --role read --name NAME</code>. The browser keeps the token until
        it is closed; scripts can't read it. <a href="assets/licenses.txt">Licences</a>
      </p>
    </main>
  );
}
