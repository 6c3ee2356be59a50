# What the codes of the catalogue say. Keys and placeholders are the same in all files; en is where a text begins.

# The sentence of a code, and what the scheduler says about this one case.
with-detail = { $sentence }：{ $detail }

NOTFOUND_001 = ジョブが存在しません
NOTFOUND_003 = トリガーが存在しません
NOTFOUND_004 = タスクが存在しないか、すでに終了しています
NOTFOUND_005 = ジョブはファイルに由来しないか、その版がなく、復元できません
NOTFOUND_006 = ランナーが存在しません
NOTFOUND_008 = トークンが存在しません
NOTFOUND_009 = このリースは誰も保持していません
NOTFOUND_010 = この名前のアラームチャネルはスケジューラーにありません
NOTFOUND_011 = カレンダーまたは同時実行グループが存在しません
VALIDATION_001 = ジョブ、カレンダーまたは同時実行グループの定義に誤りがあります
VALIDATION_002 = ページサイズまたはページトークンが範囲外です
VALIDATION_003 = リクエストのフィールドに誤りがあります
VALIDATION_004 = バッチが空か、大きすぎます
CONFLICT_001 = ジョブは実行中で、ポリシーにより今は別の実行ができません
CONFLICT_002 = リースは他の誰かが保持しているか、失われています
CONFLICT_004 = 別のプロセスがこのランナー ID を保持しています
CONFLICT_005 = べき等キーは別の内容で使用済みです
CONFLICT_007 = この名前のトークンはすでに存在します
CONFLICT_008 = 最後の管理者トークンです。これがないと誰もトークンを作成できません
CONFLICT_009 = 呼び出しが想定する版の後に変更されました
CONFLICT_010 = ホストはまだ応答しているか、失われたと宣言されていないタスクを保持しています
CONFLICT_011 = カレンダーまたは同時実行グループは使用中です
CONFLICT_012 = リースは取り上げられました
UNAVAILABLE_001 = このスケジューラーは起動中または停止中です
UNAVAILABLE_003 = データベースに接続できないか、混雑しています
UNAVAILABLE_006 = データベースに書き込めません。ディスクが満杯か、読み取り専用です
UNAVAILABLE_007 = 待機中のリクエストが多すぎます。再試行してください
AUTH_001 = 呼び出しにトークンがないか、不明、期限切れ、または失効しています
AUTH_002 = トークンのロールではこの呼び出しは許可されません
UNEXPECTED_001 = 起こるはずのないエラーです。スケジューラーのログを確認してください
