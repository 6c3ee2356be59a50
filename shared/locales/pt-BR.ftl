# What the codes of the catalogue say. Keys and placeholders are the same in all files; en is where a text begins.

# The sentence of a code, and what the scheduler says about this one case.
with-detail = { $sentence }: { $detail }

NOTFOUND_001 = O job não existe
NOTFOUND_003 = O gatilho não existe
NOTFOUND_004 = A tarefa não existe ou já terminou
NOTFOUND_005 = O job não vem de nenhum arquivo, ou não teve essa versão, e não pode ser restaurado
NOTFOUND_006 = O runner não existe
NOTFOUND_008 = O token não existe
NOTFOUND_009 = Ninguém detém esta concessão
NOTFOUND_010 = O agendador não tem nenhum canal de alarme com esse nome
NOTFOUND_011 = O calendário ou o grupo de concorrência não existe
VALIDATION_001 = A definição de um job, calendário ou grupo de concorrência está errada
VALIDATION_002 = Um tamanho de página ou token de página está fora do intervalo
VALIDATION_003 = Um campo da requisição está errado
VALIDATION_004 = Um lote está vazio ou é grande demais
CONFLICT_001 = O job está em execução, e sua regra não permite outra execução agora
CONFLICT_002 = Outra pessoa detém a concessão, ou ela foi perdida
CONFLICT_004 = Outro processo detém este identificador de runner
CONFLICT_005 = A chave de idempotência foi usada com outro conteúdo
CONFLICT_007 = Já existe um token com este nome
CONFLICT_008 = É o último token de administração; sem ele ninguém poderia criar tokens
CONFLICT_009 = Foi alterado depois da versão que a chamada espera
CONFLICT_010 = O host ainda responde, ou tem tarefas que ninguém declarou perdidas
CONFLICT_011 = O calendário ou o grupo de concorrência está em uso
CONFLICT_012 = Alguém retirou a concessão
UNAVAILABLE_001 = Este agendador está iniciando ou parando
UNAVAILABLE_003 = O banco de dados está inacessível ou ocupado
UNAVAILABLE_006 = O banco de dados não aceita mais nada: disco cheio ou somente leitura
UNAVAILABLE_007 = Há requisições demais em espera; tente novamente
AUTH_001 = A chamada não traz token, ou ele é desconhecido, expirou ou foi revogado
AUTH_002 = O papel do token não permite esta chamada
UNEXPECTED_001 = Um erro que não deveria acontecer; veja o log do agendador
